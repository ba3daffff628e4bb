//! Types that are their bytes and nothing more.

/// A type whose values are plain bytes, so that they can lie in a device's memory, be written there
/// by anything, and be read again.
///
/// Implemented for integers, floats and arrays of such. Not for `bool` and `char`, of which not all
/// bytes are values, and not for tuples, whose layout is the compiler's and may have gaps. A struct
/// with `#[repr(C)]` and no gaps may be one:
///
/// ```
/// use forebay::handle::Plain;
///
/// #[derive(Clone, Copy)]
/// #[repr(C)]
/// struct Particle {
///     place: [f32; 3],
///     mass: f32,
/// }
///
/// // SAFETY: four floats side by side: no gaps, and any bits are floats.
/// unsafe impl Plain for Particle {}
/// ```
///
/// # Safety
///
/// An implementation promises:
///
/// * Any bytes, as many as the type has, are a value of it.
/// * The type has no bytes that belong to no field: no gaps and no end filled up.
/// * It holds no pointer or reference, and nothing that changes behind a shared reference.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($type:ty),+ $(,)?) => {
        $(
            // SAFETY: a number: every pattern of bits is one, and every bit counts.
            unsafe impl Plain for $type {}
        )+
    };
}

plain!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);

// SAFETY: elements lie side by side with nothing between, and each is plain.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
