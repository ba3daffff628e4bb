//! JSON, written by hand: the library has serde only as a feature, and a process can be read without it.

use core::fmt::Write;

/// What can be written as JSON.
pub(super) trait Json {
    /// Appends it to `out`.
    fn write(&self, out: &mut String);
}

impl Json for u64 {
    fn write(&self, out: &mut String) {
        // A string takes all that is written to it.
        let _ = write!(out, "{self}");
    }
}

impl Json for String {
    fn write(&self, out: &mut String) {
        out.push('"');
        for letter in self.chars() {
            match letter {
                '"' | '\\' => out.extend(['\\', letter]),
                letter if letter.is_control() => {
                    let _ = write!(out, "\\u{:04x}", u32::from(letter));
                }
                letter => out.push(letter),
            }
        }
        out.push('"');
    }
}

impl<T: Json> Json for Vec<T> {
    fn write(&self, out: &mut String) {
        out.push('[');
        for (at, one) in self.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            one.write(out);
        }
        out.push(']');
    }
}

/// The fields of a structure, in order.
pub(super) fn write_fields(fields: &[(&str, &dyn Json)], out: &mut String) {
    for (at, (name, value)) in fields.iter().enumerate() {
        out.push(if at == 0 { '{' } else { ',' });
        let _ = write!(out, "\"{name}\":");
        value.write(out);
    }
    out.push('}');
}
