//! The recorded run that ships with the crate.

use crate::Trace;
use crate::format::{self, FormatError, ReadOptions};

/// The file as shipped: `op,id,bytes,stream`, gzip.
const GPT2_TRAIN: &[u8] = include_bytes!("../data/gpt2_train.csv.gz");

/// Training of GPT-2 124M: one real PyTorch 2.11 run on one NVIDIA H200, batch 8 x 1024 tokens,
/// bf16 autocast, AdamW, 10 steps. 14,377 allocations with a live peak of 12.379 GiB.
pub fn gpt2_train() -> Result<Trace, FormatError> {
    format::read(GPT2_TRAIN, "gpt2_train", &ReadOptions::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recording_is_what_its_readme_says() {
        let sums = gpt2_train().unwrap().statistics();
        assert_eq!(sums.allocations, 14_377);
        assert_eq!(sums.frees, 14_374);
        assert_eq!(sums.streams, 1);
        assert_eq!(sums.peak_requested.get(), 13_292_217_032);
        let gib = sums.peak_requested.get() as f64 / (1_u64 << 30) as f64;
        assert_eq!(format!("{gib:.3}"), "12.379");
    }
}
