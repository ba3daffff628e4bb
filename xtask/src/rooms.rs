//! The rooms inside the crate `forebay`: which module may import which, and the check that they do. In other crates,
//! only that no files import each other in a circle.
//!
//! ```text
//!   sources ── syn ──> imports of each file ── doors resolved ──> edges between files
//!                                                                  ├─ into a later room?
//!                                                                  └─ round in a circle?
//! ```
//!
//! A re-export (`pub use`) in a `mod.rs` or in `lib.rs` is a door: it is no import of that file, and an import
//! through it counts as one of the file that the name comes from. In `lib.rs` a private `use` is one too, since every
//! module sees it. A glob re-export is an import. An import of the root, of a module inside `lib.rs`, or of an item
//! that `lib.rs` defines would hide where names come from, and is refused; so is a glob in `lib.rs`. Paths inside macro
//! calls are read from their tokens. What is there in tests alone is not read.
//!
//! What is not seen: a call of an inherent method that a later room adds to a type of an earlier one, a path that a
//! macro puts together, and the groups of a `use` inside a macro call.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, ItemMod, ItemUse, Meta, Token, UseTree, Visibility};

use crate::files;

/// Where the crate's sources are, from the root of the repository.
const SOURCES: &str = "crates/forebay/src";

/// The rooms in order: a module may import from its own room and from earlier ones. A module belongs to
/// the room with the longest name that begins its path.
const ROOMS: &[(&str, &str)] = &[
    ("config", "settings, their sources and their errors"),
    ("class", "classes of memory"),
    ("tag", "names that blocks are counted under"),
    ("pool_id", "the numbers of pools"),
    ("stack", "call stacks, each kept once; a lock"),
    ("retry", "calls that are made once more"),
    ("devices", "devices by name"),
    ("whole_file", "files that appear when they are whole"),
    ("report", "what a refusal, a leak and a late write look like"),
    ("named::name", "which names shared buffers can have"),
    ("named::error", "errors of shared buffers"),
    ("safetensors::dtype", "types of elements in files of weights"),
    ("safetensors::error", "what is wrong with files of weights"),
    ("error", "errors of the whole crate"),
    ("range", "ranges of elements, checked"),
    ("host_vec", "vectors whose memory the host may refuse"),
    ("block", "blocks, requests, and the trait of everything that allocates"),
    ("callback", "calls of the program's hooks, whose panics end there"),
    ("user", "who is at the other end of a socket"),
    ("monitor", "the process as others see it, and the thread that answers them; a lock"),
    ("pool::common", "what every room of the pool uses; no lock of the pool"),
    ("pool::heap", "free memory by stream; the heap's lock"),
    ("pool::front", "thread caches: hits, and what they leave to the heap; no lock of its own"),
    ("pool::backing", "pages, segments, deferred work; the backing's lock"),
    ("pool::debug", "state of the debug checks"),
    ("pool::inner", "the parts of a pool in one place"),
    ("pool::turn", "brief uses of a pool, and the last drop that waits for them; a lock"),
    ("pool::views", "statistics, snapshots, memory map"),
    ("pool::calls", "what calls do: allocate, make room, reclaim, free"),
    ("pool", "the public pool"),
    ("bulk", "engines that arrays copy through; a lock"),
    ("handle", "blocks that free themselves"),
    ("transformer", "sizes to warm a pool up for"),
    ("pinned", "pools of pinned host memory"),
    ("arena", "memory freed all at once"),
    ("adaptor", "allocators over allocators"),
    ("transfer", "ordinary memory to and from a device by several threads; a lock for each engine"),
    ("safetensors", "files of weights, checked and loaded"),
    ("buffer", "data with a host side and a device side; a lock for each manager"),
    ("named", "buffers that processes share by name; a lock for each process"),
    ("leak", "what is live in the process, and what of it is suspicious; no lock"),
    ("objects", "pools of objects and arrays; a lock for each"),
    ("bindings", "what the C and Python crates share"),
];

/// Other crates in which no files import each other in a circle.
const WITHOUT_CIRCLES: &[&str] = &["forebay-cuda", "forebay-cli", "forebay-capi", "forebay-py"];

/// Rooms whose files may import each other. Settings, their builder, presets and sources are one idea in several files.
const WHOLE: &[&str] = &["config"];

/// A module of the crate, by its path: `["pool", "heap"]`.
type Module = Vec<String>;

/// An import of one file from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    user: Module,
    used: Module,
}

/// The imports between the files of the crate.
pub(crate) struct Rooms {
    modules: Vec<Module>,
    edges: BTreeSet<Edge>,
    /// Imports of the root, or of what is written inside it, and globs in it: who, and what.
    unclear: BTreeSet<(Module, Module)>,
}

impl Rooms {
    /// Reads the sources of the crate `forebay`.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        Self::read_sources(&root.join(SOURCES))
    }

    /// The circles of imports in the other crates that must have none.
    pub(crate) fn circles_elsewhere(root: &Path) -> Vec<String> {
        let circles_of =
            |krate: &&str| match Self::read_sources(&root.join("crates").join(krate).join("src")) {
                Ok(rooms) => rooms.circles(&format!("{krate}::")),
                Err(error) => vec![error],
            };
        WITHOUT_CIRCLES.iter().flat_map(circles_of).collect()
    }

    fn read_sources(folder: &Path) -> Result<Self, String> {
        let is_source = |path: &Path| {
            let is_rust = path.is_dir() || path.extension().is_some_and(|ending| ending == "rs");
            is_rust && path.file_stem().is_some_and(|stem| stem != "tests")
        };
        let mut found = BTreeMap::new();
        for path in files::below(folder, &is_source)? {
            let file = syn::parse_file(&files::read(&path)?)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let has_doors = path.ends_with("mod.rs") || path.ends_with("lib.rs");
            let mut imports = Imports { has_doors, ..Imports::default() };
            imports.visit_file(&file);
            found.insert(module_of(path.strip_prefix(folder).unwrap_or(&path)), imports);
        }
        Ok(Self::of(found))
    }

    fn of(found: BTreeMap<Module, Imports>) -> Self {
        let inside = |file: &Module, scope: &Module| -> Module {
            file.iter().chain(scope).cloned().collect()
        };
        // Modules with the file they are in: a file's own, and those written inside it.
        let mut files: BTreeMap<Module, &Module> = BTreeMap::new();
        let mut doors = BTreeMap::new();
        for (file, imports) in &found {
            files.insert(file.clone(), file);
            files.extend(imports.inner.iter().map(|scope| (inside(file, scope), file)));
            // What `lib.rs` imports, every module sees; paths in its code have no name.
            let seen = imports.paths.iter().filter(|path| file.is_empty() && !path.name.is_empty());
            for Import { scope, path, name } in imports.doors.iter().chain(seen) {
                let module = inside(file, scope);
                let path = absolute(&module, path);
                doors.insert((module, name.clone()), path);
            }
        }
        let (mut edges, mut unclear) = (BTreeSet::new(), BTreeSet::new());
        for (user, imports) in &found {
            for Import { scope, path, name } in &imports.paths {
                let path = absolute(&inside(user, scope), path);
                // In code a module is no value: this is a variable that has the name of one.
                if name.is_empty() && files.contains_key(&path) {
                    continue;
                }
                let Some(used) = resolve(&path, &files, &doors) else { continue };
                let hides = if user.is_empty() { name == "*" } else { used.is_empty() };
                if hides && user != used {
                    unclear.insert((user.clone(), path));
                } else if used != user && !used.is_empty() && !user.is_empty() {
                    edges.insert(Edge { user: user.clone(), used: used.clone() });
                }
            }
        }
        let modules = found.keys().filter(|module| !module.is_empty()).cloned().collect();
        Self { modules, edges, unclear }
    }

    /// All that is wrong.
    pub(crate) fn disorders(&self) -> Vec<String> {
        let homeless = self.modules.iter().filter(|module| room(module).is_none());
        let mut found: Vec<_> = homeless
            .map(|module| {
                let module = name(module);
                format!("forebay::{module} has no room: enter it in ROOMS of xtask/src/rooms.rs")
            })
            .collect();
        let upward = self.edges.iter().filter(|edge| {
            matches!((room(&edge.user), room(&edge.used)), (Some(user), Some(used)) if used > user)
        });
        found.extend(upward.map(|Edge { user, used }| {
            format!(
                "forebay::{} imports {}, whose room comes later in the order: move what both \
                 need to an earlier room, or the importer to a later one",
                name(user),
                name(used)
            )
        }));
        found.extend(self.unclear.iter().map(|(user, path)| {
            let path = if path.is_empty() { "crate::*".to_owned() } else { name(path) };
            let user = if user.is_empty() { "lib".to_owned() } else { name(user) };
            format!(
                "forebay::{user} imports {path}, which hides where its names come from: name each by its own module"
            )
        }));
        found.extend(self.circles(""));
        found
    }

    /// Groups of modules each of which reaches all others of its group. `prefix` is put before their names.
    fn circles(&self, prefix: &str) -> Vec<String> {
        let reach: BTreeMap<&Module, BTreeSet<&Module>> =
            self.modules.iter().map(|module| (module, self.reached_from(module))).collect();
        let reaches =
            |from: &Module, to: &Module| reach.get(from).is_some_and(|all| all.contains(to));
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for module in self.modules.iter().filter(|module| reaches(module, module)) {
            if seen.contains(module) {
                continue;
            }
            let others = self.modules.iter();
            let circle: Vec<&Module> =
                others.filter(|other| reaches(module, other) && reaches(other, module)).collect();
            seen.extend(circle.iter().copied());
            let is_in = |whole: &&str| {
                circle.iter().all(|module| module.first().is_some_and(|room| room == whole))
            };
            if !WHOLE.iter().any(is_in) {
                let names: Vec<_> =
                    circle.into_iter().map(|module| format!("{prefix}{}", name(module))).collect();
                circles.push(format!("modules import each other: {}", names.join(", ")));
            }
        }
        circles
    }

    fn reached_from(&self, start: &Module) -> BTreeSet<&Module> {
        let mut reached = BTreeSet::new();
        let mut next = vec![start];
        while let Some(module) = next.pop() {
            for edge in self.edges.iter().filter(|edge| edge.user == *module) {
                if reached.insert(&edge.used) {
                    next.push(&edge.used);
                }
            }
        }
        reached
    }

    /// The order as a drawing: a line for each room, with how many files it has and which rooms it imports.
    pub(crate) fn drawing(&self) -> String {
        let mut lines = vec![
            "inside forebay, a module imports only from its own room and from earlier ones"
                .to_owned(),
        ];
        lines.push(String::new());
        for (index, (room_name, subject)) in ROOMS.iter().enumerate() {
            let is_here = |module: &Module| room(module) == Some(index);
            let files = self.modules.iter().filter(|module| is_here(module)).count();
            let used: BTreeSet<usize> = self
                .edges
                .iter()
                .filter(|edge| is_here(&edge.user))
                .filter_map(|edge| room(&edge.used))
                .filter(|&used| used != index)
                .collect();
            let used: Vec<&str> = used
                .iter()
                .filter_map(|&used| ROOMS.get(used))
                .map(|(name, _)| name.strip_prefix("pool::").unwrap_or(name))
                .collect();
            let used =
                if used.is_empty() { String::new() } else { format!("; uses {}", used.join(", ")) };
            let count = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
            lines.push(format!("  {room_name:<26}{count:<10}{subject}{used}"));
        }
        lines.join("\n")
    }
}

/// A path as it is written, and the module inside the file that it is written in.
#[derive(Debug)]
struct Import {
    scope: Module,
    path: Module,
    /// What it is called there: "*" for a glob, nothing for a path that is no `use`.
    name: String,
}

/// The imports of one file.
#[derive(Debug, Default)]
struct Imports {
    paths: Vec<Import>,
    /// What is re-exported.
    doors: Vec<Import>,
    /// The modules that are written inside the file.
    inner: BTreeSet<Module>,
    /// Where the reading is.
    scope: Module,
    /// Whether a re-export is a door, and not an import.
    has_doors: bool,
}

impl Imports {
    fn add_tree(&mut self, prefix: &Module, tree: &UseTree, is_door: bool) {
        let joined = |name: &syn::Ident| -> Module {
            prefix.iter().cloned().chain([name.to_string()]).collect()
        };
        let (path, name) = match tree {
            UseTree::Path(path) => return self.add_tree(&joined(&path.ident), &path.tree, is_door),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|item| self.add_tree(prefix, item, is_door));
            }
            UseTree::Name(name) => (joined(&name.ident), name.ident.to_string()),
            UseTree::Rename(rename) => (joined(&rename.ident), rename.rename.to_string()),
            UseTree::Glob(_) => (prefix.clone(), "*".to_owned()),
        };
        // Nobody can tell which names come through a glob: it is no door.
        let is_door = is_door && name != "*";
        let import = Import { scope: self.scope.clone(), path, name };
        if is_door { self.doors.push(import) } else { self.paths.push(import) }
    }
}

impl Imports {
    /// Adds the paths in the tokens of a macro call that begin with `crate`, `self` or `super`.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Module = Vec::new();
        // How many colons stand between the last word and what follows: two join.
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(word) => {
                    let word = word.to_string();
                    if colons != 2 {
                        self.add_path(core::mem::take(&mut path));
                    }
                    if !path.is_empty() || is_start(&word) {
                        path.push(word);
                    }
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                other => {
                    self.add_path(core::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.add_path(path);
    }

    fn add_path(&mut self, path: Module) {
        if !path.is_empty() {
            self.paths.push(Import { scope: self.scope.clone(), path, name: String::new() });
        }
    }
}

/// Whether a path that begins with this word begins in the crate.
fn is_start(word: &str) -> bool {
    matches!(word, "crate" | "self" | "super")
}

impl<'a> Visit<'a> for Imports {
    fn visit_item(&mut self, item: &'a Item) {
        if !is_for_tests(attributes_of(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'a ImplItem) {
        let attributes: &[Attribute] = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let is_door = self.has_doors && !matches!(item.vis, Visibility::Inherited);
        self.add_tree(&Vec::new(), &item.tree, is_door);
    }

    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if item.content.is_none() {
            return;
        }
        self.scope.push(item.ident.to_string());
        self.inner.insert(self.scope.clone());
        visit::visit_item_mod(self, item);
        self.scope.pop();
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.paths.push(Import { scope: self.scope.clone(), path: segments, name: String::new() });
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.add_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    // `pub(in crate::pool)` imports nothing.
    fn visit_visibility(&mut self, _: &'a Visibility) {}
}

/// Whether an item is there in tests alone.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<Meta>().is_ok_and(|condition| needs_test(&condition))
    })
}

/// Whether a condition holds in tests alone: `test`, or `all` with it.
fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|all| all.iter().any(needs_test)),
        _ => false,
    }
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// A path as it is from the root of the crate. One that begins with another name is taken for one inside `module`,
/// as in `lib.rs` and `mod.rs`; where it is of another crate, it leads to no file.
fn absolute(module: &Module, path: &Module) -> Module {
    let from_root = path.first().is_some_and(|first| first == "crate");
    let mut base = if from_root { Vec::new() } else { module.clone() };
    for segment in path {
        match segment.as_str() {
            "crate" | "self" => {}
            "super" => drop(base.pop()),
            _ => base.push(segment.clone()),
        }
    }
    base
}

/// The file that a path ends in, through doors; `None` where the path begins in no module of the crate.
fn resolve<'a>(
    path: &Module,
    files: &'a BTreeMap<Module, &Module>,
    doors: &BTreeMap<(Module, String), Module>,
) -> Option<&'a Module> {
    let mut path = path.clone();
    let mut door = None;
    // A door may lead to a door; a ring of doors does not compile.
    for _ in 0..8 {
        let longest =
            (0..=path.len()).rev().find(|&end| files.contains_key(&path[..end].to_vec()))?;
        let (at, rest) = path.split_at(longest);
        let at = at.to_vec();
        let behind = rest.first().and_then(|next| doors.get(&(at.clone(), next.clone())));
        // A door that leads nowhere in the crate leads to another crate.
        let Some(behind) = behind else {
            return files.get(&at).copied().filter(|_| door.as_ref() != Some(&at));
        };
        path = behind.iter().chain(&rest[1..]).cloned().collect();
        door = Some(at);
    }
    None
}

/// The index of the room of a module.
fn room(module: &Module) -> Option<usize> {
    let begins = |room: &str| {
        let parts: Vec<&str> = room.split("::").collect();
        parts.len() <= module.len() && parts.iter().zip(module).all(|(part, name)| part == name)
    };
    let rooms = ROOMS.iter().enumerate().filter(|(_, (room, _))| begins(room));
    rooms.max_by_key(|(_, (room, _))| room.len()).map(|(index, _)| index)
}

fn name(module: &Module) -> String {
    module.join("::")
}

/// The module of a source file, by its path under the sources.
fn module_of(path: &Path) -> Module {
    let mut parts: Module =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib")) {
        parts.pop();
    }
    parts
}

#[cfg(test)]
mod tests;
