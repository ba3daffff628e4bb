//! Which files hold the weights, and what their headers say.

use std::fs::{self, File, Metadata, OpenOptions};
use std::path::{Component, Path, PathBuf};

use forebay_hal::Call;
use serde::de::{IgnoredAny, MapAccess};

use super::error::{Problem, WeightsError, shown};
use super::header::{Header, LENGTH};
use super::json::{Entries, MAX_JSON, Object, Pairs, Parse, set};
use crate::transfer::{Files, read_at};
use crate::{Error, Result, host_vec};

/// The ending of an index, and of a file of tensors.
const INDEX: &str = ".safetensors.index.json";
const FILE: &str = ".safetensors";

/// Which file has which tensors.
pub(super) struct Index {
    /// Each once, in the order of their names.
    pub(super) files: Vec<PathBuf>,
    /// The tensors, and the numbers of their files.
    pub(super) tensors: Vec<(String, usize)>,
}

/// The file or index that a path means.
pub(super) enum Found {
    File(PathBuf),
    Index(Index),
}

/// Finds what a path means: a file of tensors, an index, or a folder with one of them.
pub(super) fn find(path: &Path) -> Result<Found> {
    let data = fs::metadata(path).map_err(|error| file_error(path, &error))?;
    let path = if data.is_dir() { in_folder(path)? } else { path.to_owned() };
    if path.extension().is_some_and(|ending| ending == "json") {
        return Ok(Found::Index(Index::read(&path)?));
    }
    Ok(Found::File(path))
}

/// The index in a folder, or the only file of tensors if there is no index.
fn in_folder(folder: &Path) -> Result<PathBuf> {
    for ending in [INDEX, FILE] {
        let (mut found, mut count) = (None, 0);
        for entry in fs::read_dir(folder).map_err(|error| file_error(folder, &error))? {
            let entry = entry.map_err(|error| file_error(folder, &error))?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            if name.strip_suffix(ending) == Some("model") {
                return Ok(entry.path());
            }
            if name.ends_with(ending) {
                (found, count) = (Some(entry.path()), count + 1);
            }
        }
        match found {
            Some(path) if count == 1 => return Ok(path),
            None if ending == INDEX => {}
            _ => return Err(error_of(folder, Problem::WhichFile { count, ending })),
        }
    }
    Err(error_of(folder, Problem::WhichFile { count: 0, ending: FILE }))
}

/// The `weight_map` of an index: the files of tensors.
#[derive(Default)]
struct WeightMap(Option<Pairs>);

impl Entries for WeightMap {
    fn entry<'de, A: MapAccess<'de>>(
        &mut self,
        parse: &Parse<'_>,
        name: String,
        map: &mut A,
    ) -> core::result::Result<(), A::Error> {
        if name != "weight_map" {
            return map.next_value::<IgnoredAny>().map(drop);
        }
        let mut pairs = Pairs::default();
        map.next_value_seed(Object(parse, &mut pairs))?;
        set(&mut self.0, "weight_map", pairs)
    }
}

impl Index {
    fn read(path: &Path) -> Result<Self> {
        let (file, data) = open(path)?;
        let size = data.len();
        if size > MAX_JSON {
            return Err(error_of(path, Problem::HeaderTooLong { header: size, max: MAX_JSON }));
        }
        let text = read(path, &file, 0, usize::try_from(size).unwrap_or(usize::MAX))?;
        let parse = Parse::of(path);
        let mut map = WeightMap::default();
        parse.object(&text, &mut map)?;
        let Some(Pairs(pairs)) = map.0 else {
            let reason = "an index has an object \"weight_map\"".to_owned();
            return Err(parse.error(Problem::NotJson { line: 1, column: 1, reason }));
        };
        let mut names = host_vec::with_capacity::<&str>(pairs.len(), Call::Allocate)?;
        names.extend(pairs.iter().map(|(_, file)| file.as_str()));
        names.sort_unstable();
        names.dedup();
        let folder = path.parent().unwrap_or(Path::new(""));
        let below = |name: &&str| {
            let plain = |part| matches!(part, Component::Normal(_));
            if !name.is_empty() && Path::new(name).components().all(plain) {
                return Ok(folder.join(name));
            }
            Err(parse.error(Problem::OutsideFolder { file: shown(name) }))
        };
        let files = names.iter().map(below).collect::<Result<_>>()?;
        let mut tensors = host_vec::with_capacity(pairs.len(), Call::Allocate)?;
        for (name, file) in &pairs {
            // Each is in the list that was made of them.
            let number = names.binary_search(&file.as_str()).unwrap_or_default();
            tensors.push((host_vec::text(name, Call::Allocate)?, number));
        }
        tensors.sort_unstable();
        let is_twice =
            |two: &&[(String, usize)]| matches!(two, [(one, _), (other, _)] if one == other);
        match tensors.windows(2).find(is_twice).and_then(<[_]>::first) {
            Some((name, _)) => {
                let name = shown(name);
                Err(parse.error(Problem::TwoOfOneName { name, elsewhere: None }))
            }
            None => Ok(Self { files, tensors }),
        }
    }
}

/// Opens a file of tensors, reads its header, and adds it to `files`. Returns its offset there and its header.
pub(super) fn open_header(path: &Path, files: &mut Files) -> Result<(u64, Header)> {
    let (file, data) = open(path)?;
    let size = data.len();
    if size < LENGTH as u64 {
        return Err(error_of(path, Problem::CutShort { size, needed: LENGTH as u64 }));
    }
    let first = read(path, &file, 0, LENGTH)?.try_into().unwrap_or_default();
    let length = Header::length(path, first, size)?;
    let header = Header::parse(path, &read(path, &file, LENGTH as u64, length)?, size)?;
    Ok((files.add(path, file, &data)?, header))
}

/// Opens a regular file. Does not wait for the other end of a pipe.
fn open(path: &Path) -> Result<(File, Metadata)> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    let file = options.open(path).map_err(|error| file_error(path, &error))?;
    let data = file.metadata().map_err(|error| file_error(path, &error))?;
    if data.is_file() { Ok((file, data)) } else { Err(error_of(path, Problem::NotAFile)) }
}

/// Reads bytes of a file whose size was checked.
fn read(path: &Path, file: &File, offset: u64, length: usize) -> Result<Vec<u8>> {
    let mut bytes = host_vec::zeroed(length, Call::Allocate)?;
    read_at(file, &mut bytes, offset).map_err(|error| file_error(path, &error))?;
    Ok(bytes)
}

fn file_error(path: &Path, error: &std::io::Error) -> Error {
    Error::File { path: path.to_owned(), reason: error.to_string() }
}

fn error_of(path: &Path, problem: Problem) -> Error {
    WeightsError { path: path.to_owned(), problem }.into()
}
