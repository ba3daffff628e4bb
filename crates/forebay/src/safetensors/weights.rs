//! Open files of weights, and loading them.

use core::fmt;
use std::path::Path;
use std::sync::Arc;

use bytemuck::Pod;
use forebay_core::Bytes;
use forebay_hal::{Call, NamedStream, invalid};

use super::dtype::Dtype;
use super::error::{Problem, WeightsError, shown};
use super::header::TensorInfo;
use super::open::{Found, Index, find, open_header};
use crate::handle::{OnStream, Refused, allocate_batch};
use crate::transfer::{Endpoints, Files, Job, Ticket, Transfer, TransferEngine, upload_ranges};
use crate::{DeviceArray, Error, Result, host_vec};

/// Tensors in files: all of them, or those that were [selected](Self::select). The files stay open.
#[derive(Clone)]
pub struct Weights {
    files: Arc<Files>,
    metadata: Arc<[(String, String)]>,
    /// In the order of the files, and of the bytes in each.
    tensors: Vec<Arc<Place>>,
}

/// A tensor and its offset among all files.
#[derive(Debug)]
struct Place {
    info: TensorInfo,
    offset: u64,
    /// Its number among the tensors of all files.
    number: usize,
}

impl Weights {
    /// Opens a file of tensors, an index of several (`model.safetensors.index.json`), or a folder that has either: its
    /// index, `model.safetensors`, or the only file with that ending. Reads and checks the headers alone.
    ///
    /// With an index, the tensors are those that it names, each in the file that it names.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        match find(path.as_ref())? {
            Found::File(path) => Self::open_files([path]),
            Found::Index(index) => {
                let mut weights = Self::read(&index.files)?;
                weights.keep(&index)?;
                Ok(weights)
            }
        }
    }

    /// Opens several files of tensors, which have no name in common.
    pub fn open_files(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        let paths: Vec<_> = paths.into_iter().collect();
        let weights = Self::read(&paths)?;
        weights.check_names()?;
        Ok(weights)
    }

    fn read(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let (mut files, mut tensors, mut metadata) = (Files::default(), Vec::new(), Vec::new());
        for (number, path) in paths.iter().enumerate() {
            let (start, header) = open_header(path.as_ref(), &mut files)?;
            let (own, pairs) = header.into_parts();
            for info in own {
                let offset = start + info.offset;
                let info = TensorInfo { file: number, ..info };
                let place = Place { info, offset, number: tensors.len() };
                host_vec::push(&mut tensors, Arc::new(place), Call::Allocate)?;
            }
            for pair in pairs {
                host_vec::push(&mut metadata, pair, Call::Allocate)?;
            }
        }
        Ok(Self { files: Arc::new(files), metadata: metadata.into(), tensors })
    }

    /// The tensors in the order of their names, and of their files.
    fn by_name(&self) -> Result<Vec<&Arc<Place>>> {
        let mut sorted = host_vec::with_capacity(self.tensors.len(), Call::Allocate)?;
        sorted.extend(&self.tensors);
        sorted.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        Ok(sorted)
    }

    /// Fails if two files have tensors of one name.
    fn check_names(&self) -> Result<()> {
        for (one, other) in self.by_name()?.windows(2).filter_map(|two| two.first().zip(two.last()))
        {
            if one.info.name == other.info.name {
                let name = shown(&one.info.name);
                let elsewhere = self.files.path(other.info.file).map(Path::to_owned);
                return Err(self.error(one.info.file, Problem::TwoOfOneName { name, elsewhere }));
            }
        }
        Ok(())
    }

    /// Keeps the tensors of an index alone.
    fn keep(&mut self, index: &Index) -> Result<()> {
        let sorted = self.by_name()?;
        let mut kept = host_vec::with_capacity(index.tensors.len(), Call::Allocate)?;
        for (name, file) in &index.tensors {
            let found = sorted.binary_search_by(|place| key(place).cmp(&(name, *file)));
            let Some(&place) = found.ok().and_then(|at| sorted.get(at)) else {
                let problem = Problem::NoTensor { name: shown(name), nearest: None };
                return Err(self.error(*file, problem));
            };
            kept.push(Arc::clone(place));
        }
        kept.sort_unstable_by_key(|place| place.number);
        self.tensors = kept;
        Ok(())
    }

    fn error(&self, file: usize, problem: Problem) -> Error {
        let path = self.files.path(file).map(Path::to_owned).unwrap_or_default();
        WeightsError { path, problem }.into()
    }

    /// The tensors, in the order in which they lie in the files.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter().map(|place| &place.info)
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors().find(|tensor| tensor.name == name)
    }

    /// The file of a tensor.
    pub fn path_of(&self, tensor: &TensorInfo) -> &Path {
        self.files.path(tensor.file).unwrap_or(Path::new(""))
    }

    /// What the files say of themselves: their `__metadata__`, one file after the other.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// The bytes of all tensors.
    pub fn size(&self) -> Bytes {
        self.tensors().fold(Bytes::ZERO, |sum, tensor| sum.saturating_add(tensor.size()))
    }

    /// Some of the tensors, each once. Fails if there is no tensor of a name.
    pub fn select(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let sorted = self.by_name()?;
        let mut tensors = Vec::new();
        for name in names {
            let name = name.as_ref();
            let at = sorted.partition_point(|place| *place.info.name < *name);
            match sorted.get(at).filter(|place| place.info.name == name) {
                Some(&place) => host_vec::push(&mut tensors, Arc::clone(place), Call::Allocate)?,
                None => return Err(self.no_tensor(name)),
            }
        }
        tensors.sort_unstable_by_key(|place| place.number);
        tensors.dedup_by_key(|place| place.number);
        let (files, metadata) = (Arc::clone(&self.files), Arc::clone(&self.metadata));
        Ok(Self { files, metadata, tensors })
    }

    fn no_tensor(&self, name: &str) -> Error {
        let shown = shown(name);
        // Long names are not compared: that takes time in proportion to the product of their lengths.
        let short = self.tensors().map(TensorInfo::name).filter(|name| name.len() <= 256);
        let alike = |other: &str| strsim::normalized_levenshtein(other, &shown);
        let nearest = short
            .take(MAX_COMPARED)
            .map(|other| (alike(other), other))
            .max_by(|one, other| one.0.total_cmp(&other.0))
            .filter(|(alike, _)| *alike > 0.7)
            .map(|(_, name)| name.to_owned());
        self.error(0, Problem::NoTensor { name: shown, nearest })
    }

    /// Loads the tensors with an engine into blocks of a pool, in the order of its stream. Allocates when the transfer is
    /// submitted: all of the blocks, or none.
    ///
    /// [`Transfer::on_progress`] tells how far it is, and [`Ticket::cancel`] ends it.
    pub fn load<'e>(&self, engine: &'e TransferEngine, on: OnStream<'e>) -> Transfer<'e, Load<'e>> {
        Transfer::new(engine, Load { weights: self.clone(), on })
    }
}

/// The most names that a wrong one is compared with.
const MAX_COMPARED: usize = 10_000;

/// What tensors are found by.
fn key(place: &Place) -> (&String, usize) {
    (&place.info.name, place.info.file)
}

/// Tensors, and where to load them.
#[derive(Debug)]
pub struct Load<'a> {
    weights: Weights,
    on: OnStream<'a>,
}

/// A tensor that was loaded: a block of its own, freed when it is dropped.
#[derive(Debug)]
#[must_use = "the tensor is freed when it is dropped"]
pub struct Tensor {
    place: Arc<Place>,
    bytes: DeviceArray<u8>,
}

impl Endpoints for Load<'_> {
    type Submitted = Result<Ticket<Vec<Tensor>>>;

    fn begin(self, engine: &TransferEngine, job: Job) -> Self::Submitted {
        let Self { weights: Weights { files, tensors: places, .. }, on } = self;
        let mut sizes = host_vec::with_capacity(places.len(), Call::Allocate)?;
        sizes.extend(places.iter().map(|place| place.info.size()));
        let blocks = allocate_batch(on.pool(), &sizes, on)?;
        let mut tensors = host_vec::with_capacity(places.len(), Call::Allocate)?;
        for (place, block) in places.into_iter().zip(blocks) {
            let bytes = DeviceArray::from_block(block, place.info.size().to_usize()?)?;
            tensors.push(Tensor { place, bytes });
        }
        let stream = NamedStream::now(on.handle());
        Ok(upload_ranges(engine, job, files, tensors, stream, Tensor::source)?)
    }
}

impl Tensor {
    /// Where its bytes come from, and where they go.
    fn source(&self) -> (u64, &DeviceArray<u8>) {
        (self.place.offset, &self.bytes)
    }

    /// Its name, type, shape and place.
    pub fn info(&self) -> &TensorInfo {
        &self.place.info
    }

    /// Its bytes.
    pub fn bytes(&self) -> &DeviceArray<u8> {
        &self.bytes
    }

    /// Its bytes, without name, type and shape.
    pub fn into_bytes(self) -> DeviceArray<u8> {
        self.bytes
    }

    /// Its elements. Fails, and returns it, if `T` has another size than an element of the file. Whether the file has
    /// integers or floats is not checked: see [`TensorInfo::dtype`].
    pub fn into_array<T: Pod>(self) -> core::result::Result<DeviceArray<T>, Refused<Self>> {
        let Self { place, bytes } = self;
        let dtype = place.info.dtype;
        if size_of::<T>() as u64 * 8 != dtype.bits() {
            let given = format!("{} for {dtype}", core::any::type_name::<T>());
            let error = invalid(Call::Copy, "T", given, allowed(dtype));
            return Err(Refused::new(Self { place, bytes }, error.into()));
        }
        bytes.cast().map_err(|refused| refused.map(|bytes| Self { place, bytes }))
    }
}

/// The size of elements that a program must name.
fn allowed(dtype: Dtype) -> String {
    match dtype.bits() {
        bits if bits.is_multiple_of(8) => format!("a type of {} B", bits / 8),
        _ => "nothing but bytes, of which its elements share some: into_bytes".to_owned(),
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weights").field("tensors", &self.tensors.len()).finish_non_exhaustive()
    }
}
