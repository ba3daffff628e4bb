//! Files as they should be, files that lie, and files that change, on the simulated device without memory that the host
//! sees, whose checker names what races.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use forebay_core::{Bytes, Random};
use forebay_hal::{Capabilities, Streams as _};
use forebay_sim::{SimDevice, SimMachine};
use tempfile::TempDir;

use super::*;
use crate::transfer::{TransferEngine, TransferOptions};
use crate::{Error, Pool, PoolOptions, Result};

/// A tensor to write: name, type, shape.
type Given<'a> = (&'a str, Dtype, &'a [u64]);

/// A folder, a device with memory of its own, and an engine of small pieces.
struct Bench {
    folder: TempDir,
    machine: SimMachine,
    device: Arc<SimDevice>,
    pool: Pool,
    engine: TransferEngine,
}

impl Bench {
    fn new() -> Self {
        let machine = SimMachine::builder().without(Capabilities::HOST_VISIBLE).build().unwrap();
        let device = machine.device(0).unwrap();
        let options = TransferOptions::new().chunk(Bytes::kib(4)).slots(3).threads(3);
        let (pool, engine) = (Pool::new(&device).unwrap(), options.build(&device).unwrap());
        Self { folder: tempfile::tempdir().unwrap(), machine, device, pool, engine }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn load(&self, weights: &Weights) -> Result<Vec<Tensor>> {
        Ok(weights.load(&self.engine, self.pool.default_stream()).submit()?.wait()?)
    }

    /// The problem of what cannot be opened, with nothing left behind.
    fn problem(&self, path: &Path) -> Problem {
        let error = Weights::open(path).unwrap_err();
        self.nothing_is_left();
        assert!(error.to_string().starts_with(&*self.folder.path().to_string_lossy()), "{error}");
        match error {
            Error::Weights(error) => error.problem,
            error => panic!("{error}"),
        }
    }

    fn nothing_is_left(&self) {
        self.device.synchronize_device().unwrap();
        assert_eq!(self.pool.statistics().live, Bytes::ZERO);
        assert_eq!(self.machine.finding_count(), 0, "{}", self.machine.findings()[0]);
    }
}

/// A file with any header and so many bytes after it.
fn file_of(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// The bytes of tensors, which differ from tensor to tensor, and a file of them.
fn file_with(tensors: &[Given<'_>]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let (mut contents, mut entries, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for (number, (name, dtype, shape)) in tensors.iter().enumerate() {
        let size = length(dtype.size_of(shape.iter().product()).unwrap());
        let own: Vec<u8> =
            (0..size).map(|at| (at * 7 + number * 31 + at / 251).to_le_bytes()[0]).collect();
        let (start, end) = (data.len(), data.len() + size);
        entries.push(format!(
            "{:?}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}",
            name
        ));
        data.extend(&own);
        contents.push(own);
    }
    let header = format!("{{\"__metadata__\":{{\"format\":\"pt\"}},{}}}   ", entries.join(","));
    (contents, file_of(&header, &data))
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    tensor.bytes().to_vec().unwrap()
}

#[test]
fn tensors_arrive_as_they_are_in_the_file() {
    let bench = Bench::new();
    let given: &[Given<'_>] = &[
        ("a.norm", Dtype::BF16, &[16]),
        ("scalar", Dtype::F64, &[]),
        ("empty", Dtype::F32, &[4, 0]),
        ("also empty", Dtype::I8, &[0]),
        ("a.large", Dtype::F16, &[100, 513]),
        ("flags", Dtype::Bool, &[3]),
        ("packed", Dtype::F4, &[5, 2]),
        ("eight", Dtype::F8E4M3, &[77]),
        ("last", Dtype::I64, &[9]),
    ];
    let (contents, file) = file_with(given);
    let weights = Weights::open(bench.write("model.safetensors", &file)).unwrap();
    assert_eq!(weights.metadata(), [("format".to_owned(), "pt".to_owned())]);
    assert_eq!(length(weights.size().get()), contents.concat().len());
    let tensors = bench.load(&weights).unwrap();
    assert_eq!(tensors.len(), given.len());
    for ((tensor, content), (name, dtype, shape)) in tensors.iter().zip(&contents).zip(given) {
        let info = tensor.info();
        assert_eq!((info.name(), info.dtype(), info.shape()), (*name, *dtype, *shape));
        assert_eq!(bytes_of(tensor), *content, "{name}");
        let start = length(info.offset());
        assert_eq!(file[start..start + content.len()], *content, "{name}");
    }
    // Each has a block of its own.
    let before = bench.pool.statistics().live;
    drop(tensors.into_iter().find(|tensor| tensor.info().name() == "a.large"));
    assert!(bench.pool.statistics().live < before);
    bench.nothing_is_left();
}

#[test]
fn only_what_is_selected_is_read() {
    let bench = Bench::new();
    let given: Vec<(String, u64)> = (0..40).map(|number| (format!("t{number}"), 900)).collect();
    let given: Vec<Given<'_>> =
        given.iter().map(|(name, size)| (&**name, Dtype::U8, std::slice::from_ref(size))).collect();
    let (contents, file) = file_with(&given);
    let weights = Weights::open(bench.write("some.safetensors", file)).unwrap();
    let some = weights.select(["t31", "t7", "t8", "t7"]).unwrap();
    assert_eq!(some.tensors().map(TensorInfo::name).collect::<Vec<_>>(), ["t7", "t8", "t31"]);
    let tensors = bench.load(&some).unwrap();
    assert_eq!(bench.engine.statistics().uploads.bytes, Bytes::new(3 * 900));
    for (tensor, number) in tensors.iter().zip([7, 8, 31]) {
        assert_eq!(bytes_of(tensor), contents[number], "t{number}");
    }
    let Err(Error::Weights(error)) = weights.select(["t7", "tt39"]) else {
        panic!("no such tensor")
    };
    assert!(matches!(&error.problem, Problem::NoTensor { name, .. } if name == "tt39"), "{error}");
    let nothing = weights.select([""; 0]).unwrap();
    assert_eq!((nothing.tensors().len(), bench.load(&nothing).unwrap().len()), (0, 0));
    drop(tensors);
    bench.nothing_is_left();
}

/// A wrong name is answered by the most similar one.
#[test]
fn a_misspelt_name_is_answered_by_the_nearest() {
    let bench = Bench::new();
    let (_, file) = file_with(&[("model.norm.weight", Dtype::U8, &[1]), ("b", Dtype::U8, &[1])]);
    let weights = Weights::open(bench.write("a.safetensors", file)).unwrap();
    let error = weights.select(["model.norms.weight"]).unwrap_err().to_string();
    assert!(error.contains("\"model.norm.weight\" is the most similar name"), "{error}");
    let error = weights.select(["something else"]).unwrap_err().to_string();
    assert!(!error.contains("similar"), "{error}");
}

#[test]
fn shards_are_loaded_as_one() {
    let bench = Bench::new();
    let (first, one) = file_with(&[("a", Dtype::F32, &[700]), ("old", Dtype::U8, &[5])]);
    let (second, other) = file_with(&[("c", Dtype::BF16, &[3, 3]), ("b", Dtype::U8, &[5000])]);
    let paths = [bench.write("x-1.safetensors", one), bench.write("x-2.safetensors", other)];
    let index = r#"{"metadata":{"total_size":1},
        "weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors","c":"x-2.safetensors"}}"#;
    let index = bench.write("model.safetensors.index.json", index);
    // The index, its folder, and a list, which has what the index leaves out.
    let by_index = [Weights::open(index).unwrap(), Weights::open(bench.folder.path()).unwrap()];
    let listed = Weights::open_files(&paths).unwrap();
    for (weights, all) in by_index.iter().map(|weights| (weights, false)).chain([(&listed, true)]) {
        let expected = [("a", &first[0]), ("old", &first[1]), ("c", &second[0]), ("b", &second[1])];
        let expected = expected.into_iter().filter(|(name, _)| all || *name != "old");
        let tensors = bench.load(weights).unwrap();
        assert_eq!(tensors.len(), if all { 4 } else { 3 });
        for (tensor, (name, content)) in tensors.iter().zip(expected) {
            assert_eq!((tensor.info().name(), bytes_of(tensor)), (name, content.clone()));
        }
        let of = weights.tensor("b").unwrap();
        assert_eq!(weights.path_of(of), paths[1]);
    }
    bench.nothing_is_left();
}

/// Any tensors, in any selection, in pieces that end anywhere.
#[test]
fn random_files_arrive_whole() {
    let (bench, mut random) = (Bench::new(), Random::new(5));
    for _ in 0..40 {
        let given: Vec<(String, Vec<u64>)> = (0..random.between(1, 60))
            .map(|number| {
                let length = [0, 1, 8, 100, 4096, 9000][random.index(6).unwrap()];
                (format!("t{number}"), vec![random.below(length + 1), 1])
            })
            .collect();
        let given: Vec<Given<'_>> =
            given.iter().map(|(name, shape)| (&**name, Dtype::U16, &**shape)).collect();
        let (contents, file) = file_with(&given);
        let weights = Weights::open(bench.write("random.safetensors", file)).unwrap();
        let names: Vec<&str> =
            given.iter().map(|(name, ..)| *name).filter(|_| random.below(3) > 0).collect();
        let tensors = bench.load(&weights.select(&names).unwrap()).unwrap();
        assert_eq!(tensors.len(), names.len());
        for tensor in tensors {
            let number: usize = tensor.info().name()[1..].parse().unwrap();
            assert_eq!(bytes_of(&tensor), contents[number], "{}", tensor.info().name());
        }
        fs::remove_file(bench.path("random.safetensors")).unwrap();
    }
    bench.nothing_is_left();
}

/// Whether a problem is the expected one.
type Is = fn(&Problem) -> bool;

/// Each way in which a header can lie, and the problem that it is.
#[test]
fn what_lies_is_refused_and_nothing_is_left() {
    let bench = Bench::new();
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let one = tensor("U8", "[4]", "[0,4]");
    let next = tensor("U8", "[4]", "[4,8]");
    let (zeros, deep) = ("0,".repeat(100_000), "[".repeat(10_000));
    let cases: &[(&str, String, usize, Is)] = &[
        ("too short for its tensor", format!(r#"{{"a":{one}}}"#), 3, |it| {
            matches!(it, Problem::OutOfFile { start: 0, end: 4, size: 3, .. })
        }),
        ("longer than its tensors", format!(r#"{{"a":{one}}}"#), 5, |it| {
            matches!(it, Problem::Hole { start: 4, end: 5 })
        }),
        ("a hole", format!(r#"{{"a":{one},"b":{}}}"#, tensor("U8", "[1]", "[5,6]")), 6, |it| {
            matches!(it, Problem::Hole { start: 4, end: 5 })
        }),
        ("an overlap", format!(r#"{{"a":{one},"b":{}}}"#, tensor("U8", "[5]", "[3,8]")), 8, |it| {
            matches!(it, Problem::Overlap { start: 3, end: 4, .. })
        }),
        ("two in one place", format!(r#"{{"a":{one},"b":{one}}}"#), 4, |it| {
            matches!(it, Problem::Overlap { start: 0, end: 4, .. })
        }),
        (
            "one name twice",
            format!(r#"{{"a":{one},"a":{next}}}"#),
            8,
            |it| matches!(it, Problem::TwoOfOneName { name, elsewhere: None } if name == "a"),
        ),
        ("a name written in two ways", format!(r#"{{"a":{one},"\u0061":{next}}}"#), 8, |it| {
            matches!(it, Problem::TwoOfOneName { .. })
        }),
        ("backwards", format!(r#"{{"a":{}}}"#, tensor("U8", "[4]", "[4,0]")), 4, |it| {
            matches!(it, Problem::Backwards { start: 4, end: 0, .. })
        }),
        (
            "more bytes than its shape",
            format!(r#"{{"a":{}}}"#, tensor("F32", "[1]", "[0,8]")),
            8,
            |it| matches!(it, Problem::WrongSize { found: 8, needed: 4, .. }),
        ),
        (
            "an endless shape",
            format!(r#"{{"a":{}}}"#, tensor("U8", "[4294967296,4294967296]", "[0,0]")),
            0,
            |it| matches!(it, Problem::ImpossibleShape { .. }),
        ),
        (
            "endless bytes",
            format!(r#"{{"a":{}}}"#, tensor("F64", "[4611686018427387904]", "[0,0]")),
            0,
            |it| matches!(it, Problem::ImpossibleShape { .. }),
        ),
        ("part of a byte", format!(r#"{{"a":{}}}"#, tensor("F4", "[3]", "[0,1]")), 1, |it| {
            matches!(it, Problem::ImpossibleShape { .. })
        }),
        (
            "offsets at the end of numbers",
            format!(
                r#"{{"a":{}}}"#,
                tensor("U8", "[1]", "[18446744073709551614,18446744073709551615]")
            ),
            1,
            |it| matches!(it, Problem::OutOfFile { .. }),
        ),
        (
            "an unknown type",
            format!(r#"{{"a":{}}}"#, tensor("F5", "[1]", "[0,1]")),
            1,
            |it| matches!(it, Problem::UnknownDtype { dtype, .. } if dtype == "F5"),
        ),
        (
            "a hundred thousand dimensions",
            format!(r#"{{"a":{}}}"#, tensor("U8", &format!("[{zeros}0]"), "[0,0]")),
            0,
            |it| matches!(it, Problem::TooManyDimensions { max: 64, .. }),
        ),
        ("a negative length", format!(r#"{{"a":{}}}"#, tensor("U8", "[-1]", "[0,0]")), 0, is_json),
        ("half a length", format!(r#"{{"a":{}}}"#, tensor("U8", "[0.5]", "[0,0]")), 0, is_json),
        ("three offsets", format!(r#"{{"a":{}}}"#, tensor("U8", "[1]", "[0,1,2]")), 1, is_json),
        ("no offsets", r#"{"a":{"dtype":"U8","shape":[1]}}"#.to_owned(), 1, is_json),
        (
            "two shapes",
            r#"{"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}"#.to_owned(),
            1,
            is_json,
        ),
        ("a list", "[]".to_owned(), 0, is_json),
        ("nothing", String::new(), 0, is_json),
        ("cut JSON", r#"{"a":{"dtype":"#.to_owned(), 0, is_json),
        ("two values", "{}{}".to_owned(), 0, is_json),
        ("metadata that is no text", r#"{"__metadata__":{"a":1}}"#.to_owned(), 0, is_json),
        ("lists in lists", format!(r#"{{"a":{{"other":{deep}"#), 0, is_json),
    ];
    for (what, header, data, is) in cases {
        let path = bench.write("lying.safetensors", file_of(header, &vec![0; *data]));
        let problem = bench.problem(&path);
        assert!(is(&problem), "{what}: {problem}");
        assert!(problem.to_string().len() < 600, "{what}: a long message");
    }
}

fn is_json(problem: &Problem) -> bool {
    matches!(problem, Problem::NotJson { line: 1, .. })
}

/// What is wrong before a header is read.
#[test]
fn what_is_no_file_of_weights_is_refused() {
    let bench = Bench::new();
    let (_, whole) = file_with(&[("a", Dtype::F32, &[100])]);
    for cut in 0..whole.len() {
        let problem = bench.problem(&bench.write("cut.safetensors", &whole[..cut]));
        let data = whole.len() - 400;
        let expected = if cut < data {
            matches!(problem, Problem::CutShort { size, needed } if size == cut as u64 && needed <= data as u64)
        } else {
            matches!(problem, Problem::OutOfFile { end: 400, .. })
        };
        assert!(expected, "{cut} of {} B: {problem}", whole.len());
    }
    let mut long = whole.clone();
    for (header, is_long) in [(100_000_001_u64, true), (100_000_000, false), (u64::MAX, true)] {
        long[..8].copy_from_slice(&header.to_le_bytes());
        let problem = bench.problem(&bench.write("long.safetensors", &long));
        assert_eq!(matches!(problem, Problem::HeaderTooLong { .. }), is_long, "{problem}");
        assert_eq!(matches!(problem, Problem::CutShort { .. }), !is_long, "{problem}");
    }
    let mut garbled = whole;
    garbled[20] = 0xFF;
    let problem = bench.problem(&bench.write("garbled.safetensors", &garbled));
    assert_eq!(problem, Problem::NotText { at: 12 });
    // A folder without any, and one with two.
    let problem = bench.problem(bench.folder.path());
    assert!(
        matches!(problem, Problem::WhichFile { count: 3, ending: ".safetensors" }),
        "{problem}"
    );
    let missing = Weights::open(bench.path("missing.safetensors")).unwrap_err();
    assert!(matches!(missing, Error::File { .. }), "{missing}");
}

/// Opening a pipe that nobody writes to would never end.
#[cfg(target_os = "linux")]
#[test]
fn a_pipe_is_refused_at_once() {
    let bench = Bench::new();
    let path = bench.path("pipe.safetensors");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    assert_eq!(bench.problem(&path), Problem::NotAFile);
}

#[test]
fn an_index_names_what_is_below_its_folder_and_there() {
    let bench = Bench::new();
    let (_, file) = file_with(&[("a", Dtype::U8, &[4])]);
    let below = bench.path("model");
    fs::create_dir(&below).unwrap();
    bench.write("secret.safetensors", &file);
    bench.write("model/here.safetensors", &file);
    let index = |map: &str| {
        let text = format!("{{\"weight_map\":{map}}}");
        bench.write("model/model.safetensors.index.json", text)
    };
    let absolute = format!("{{\"a\":{:?}}}", bench.path("secret.safetensors"));
    for outside in [
        r#"{"a":"../secret.safetensors"}"#,
        r#"{"a":"b/../../secret.safetensors"}"#,
        r#"{"a":"./../secret.safetensors"}"#,
        r#"{"a":""}"#,
        r#"{"a":".."}"#,
        &absolute,
    ] {
        let problem = bench.problem(&index(outside));
        assert!(matches!(problem, Problem::OutsideFolder { .. }), "{outside}: {problem}");
    }
    let missing = Weights::open(index(r#"{"a":"gone.safetensors"}"#)).unwrap_err();
    let Error::File { path, .. } = missing else { panic!("{missing}") };
    assert_eq!(path, below.join("gone.safetensors"));
    let problem = bench.problem(&index(r#"{"a":"here.safetensors","b":"here.safetensors"}"#));
    assert!(matches!(problem, Problem::NoTensor { ref name, .. } if name == "b"), "{problem}");
    let problem = bench.problem(&index(r#"{"a":"here.safetensors","a":"here.safetensors"}"#));
    assert!(matches!(problem, Problem::TwoOfOneName { .. }), "{problem}");
    assert!(is_json(&bench.problem(&index("[]"))));
    assert!(is_json(&bench.problem(&bench.write("model/model.safetensors.index.json", "{}"))));
    // Caches of models are links to files elsewhere.
    #[cfg(unix)]
    std::os::unix::fs::symlink(bench.path("secret.safetensors"), below.join("link.safetensors"))
        .unwrap();
    assert_eq!(Weights::open(index(r#"{"a":"link.safetensors"}"#)).unwrap().tensors().len(), 1);
}

#[test]
fn two_files_with_one_name_are_refused() {
    let bench = Bench::new();
    let (_, file) = file_with(&[("a", Dtype::U8, &[4])]);
    let paths = [bench.write("1.safetensors", &file), bench.write("2.safetensors", &file)];
    let Err(Error::Weights(error)) = Weights::open_files(&paths) else { panic!("one name twice") };
    assert_eq!(error.path, paths[0]);
    let name = "a".to_owned();
    assert_eq!(error.problem, Problem::TwoOfOneName { name, elsewhere: Some(paths[1].clone()) });
}

/// Before a load and in the middle of one: never a signal, as with a mapped file.
#[test]
fn a_file_that_shrinks_is_an_error_and_nothing_is_left() {
    let bench = Bench::new();
    let (_, file) = file_with(&[("a", Dtype::U8, &[200_000]), ("b", Dtype::U8, &[200_000])]);
    let path = bench.write("shrinks.safetensors", &file);
    let weights = Weights::open(&path).unwrap();
    let shrink = move || {
        OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    };
    let meanwhile = shrink.clone();
    let once = AtomicBool::new(true);
    let load = weights.load(&bench.engine, bench.pool.default_stream());
    let load = load.on_progress(move |_| {
        if once.swap(false, Ordering::Relaxed) {
            meanwhile();
        }
    });
    for load in [load, weights.load(&bench.engine, bench.pool.default_stream())] {
        let error = Error::from(load.submit().unwrap().wait().unwrap_err());
        let Error::FileChanged { before, now, .. } = error else { panic!("{error}") };
        assert_eq!((before.get(), now.get()), (file.len() as u64, 100));
        bench.nothing_is_left();
    }
    shrink();
}

#[test]
fn a_file_that_is_written_over_is_an_error() {
    let bench = Bench::new();
    let (_, file) = file_with(&[("a", Dtype::U8, &[20_000])]);
    let path = bench.write("changes.safetensors", &file);
    let weights = Weights::open(&path).unwrap();
    assert_eq!(bench.load(&weights).unwrap().len(), 1);
    let later = SystemTime::now() + Duration::from_secs(1);
    OpenOptions::new().write(true).open(&path).unwrap().set_modified(later).unwrap();
    let error = bench.load(&weights).unwrap_err();
    assert!(matches!(error, Error::FileChanged { .. }), "{error}");
    assert!(bench.load(&Weights::open(&path).unwrap()).is_ok());
    bench.nothing_is_left();
}

#[test]
fn a_load_that_is_cancelled_leaves_nothing() {
    let bench = Bench::new();
    let (_, file) = file_with(&[("a", Dtype::U8, &[2_000_000])]);
    let weights = Weights::open(bench.write("model.safetensors", file)).unwrap();
    let load = || weights.load(&bench.engine, bench.pool.default_stream()).submit().unwrap();
    let ticket = load();
    if !ticket.wait_for(Duration::ZERO) {
        assert!(ticket.cancel());
        let error = Error::from(ticket.wait().unwrap_err());
        assert!(matches!(error, Error::Cancelled { .. }), "{error}");
    }
    bench.nothing_is_left();
    drop(load());
    while bench.engine.statistics().under_way > 0 {
        std::thread::yield_now();
    }
    // The engine has the memory until nothing uses it; the next transfer frees it.
    let ticket = load();
    while !ticket.wait_for(Duration::from_millis(1)) {}
    drop(ticket.wait().unwrap());
    bench.nothing_is_left();
}

#[test]
fn a_load_that_does_not_fit_allocates_nothing() {
    let bench = Bench::new();
    let (_, file) = file_with(&[("a", Dtype::U8, &[3 << 20]), ("b", Dtype::U8, &[3 << 20])]);
    let weights = Weights::open(bench.write("model.safetensors", file)).unwrap();
    let small = PoolOptions::new().max_bytes(Bytes::mib(4)).build(&bench.device).unwrap();
    let error = weights.load(&bench.engine, small.default_stream()).submit().unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    assert_eq!(small.statistics().live, Bytes::ZERO);
}

#[test]
fn elements_have_the_size_that_the_file_says() {
    let bench = Bench::new();
    let (contents, file) = file_with(&[("a", Dtype::F32, &[3]), ("packed", Dtype::F4, &[4])]);
    let weights = Weights::open(bench.write("model.safetensors", file)).unwrap();
    let [a, packed] = bench.load(&weights).unwrap().try_into().unwrap();
    let a = a.into_array::<u16>().unwrap_err().into_handle();
    let array = a.into_array::<u32>().unwrap();
    assert_eq!(bytemuck::cast_slice::<u32, u8>(&array.to_vec().unwrap()), contents[0]);
    let (packed, error) = packed.into_array::<u8>().unwrap_err().into_parts();
    assert!(error.to_string().contains("into_bytes"), "{error}");
    assert_eq!(packed.into_bytes().to_vec().unwrap(), contents[1]);
    let odd = bench.pool.default_stream().from_slice(&[1_u8, 2, 3]).unwrap();
    let odd = odd.cast::<u16>().unwrap_err().into_handle();
    assert_eq!(odd.to_vec().unwrap(), [1, 2, 3]);
    // Neither elements nor a region can be chosen of a load.
    let load = weights.load(&bench.engine, bench.pool.default_stream()).at(1);
    assert!(load.submit().is_err());
}
