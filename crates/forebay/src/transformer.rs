//! What a transformer needs: sizes for a warm-up.

use forebay_core::{Bytes, QuantityError};

use crate::Result;
use crate::handle::failure::does_not_fit;

/// The dimensions of a transformer, from which the sizes of its activations follow.
///
/// ```
/// use forebay::transformer::Transformer;
/// use forebay::Bytes;
///
/// let transformer = Transformer {
///     batch: 4,
///     sequence: 512,
///     hidden: 512,
///     heads: 8,
///     layers: 6,
///     vocabulary: 10_000,
///     bytes_per_element: 4,
/// };
/// let shapes = transformer.shapes()?;
/// assert_eq!(shapes.iter().map(|(_, count)| count).sum::<u64>(), 61); // 60 and the logits
/// assert!(shapes.contains(&(Bytes::new(81_920_000), 1))); // 78.125 MiB
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transformer {
    /// Sequences in a batch.
    pub batch: u64,
    /// Tokens in a sequence.
    pub sequence: u64,
    /// Elements of a token's hidden state.
    pub hidden: u64,
    /// Attention heads in a layer.
    pub heads: u64,
    /// Layers.
    pub layers: u64,
    /// Tokens in the vocabulary.
    pub vocabulary: u64,
    /// Bytes of an element: 4 for fp32, 2 for fp16 and bf16.
    pub bytes_per_element: u64,
}

/// Activations of a layer kept for the backward pass, in the shape of its input: the first norm, queries, keys, values,
/// the heads' result, its projection, the second norm, and the layer's result.
const HIDDEN_PER_LAYER: u64 = 8;

/// Ratio of the inner to the outer width of the feed-forward part.
const WIDENING: u64 = 4;

impl Transformer {
    /// The sizes and counts of the activations that the forward pass keeps, for [`warm_up`](crate::handle::warm_up): per layer, eight in the
    /// shape of its input, the attention scores and the inner feed-forward activation; plus the logits once.
    pub fn shapes(&self) -> Result<Vec<(Bytes, u64)>> {
        self.sizes().map_err(|error| does_not_fit("shapes", &error))
    }

    fn sizes(&self) -> core::result::Result<Vec<(Bytes, u64)>, QuantityError> {
        let element = Bytes::new(self.bytes_per_element);
        let tokens = element.try_mul(self.batch)?.try_mul(self.sequence)?;
        let hidden = tokens.try_mul(self.hidden)?;
        let scores = tokens.try_mul(self.heads)?.try_mul(self.sequence)?;
        let inner = hidden.try_mul(WIDENING)?;
        let logits = tokens.try_mul(self.vocabulary)?;
        let hidden_count = Bytes::new(HIDDEN_PER_LAYER).try_mul(self.layers)?.get();
        Ok(vec![(hidden, hidden_count), (scores, self.layers), (inner, self.layers), (logits, 1)])
    }
}
