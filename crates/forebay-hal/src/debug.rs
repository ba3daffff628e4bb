//! `Debug` for errors.

/// Implements `Debug` for an error: `{:?}` prints the message and `{:#?}` the structure. A `main` that returns an error
/// prints it with `Debug`, and should tell its user what happened. Not part of the stable interface.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_message {
    ($error:ident { $($variant:ident $(($value:ident))? $({ $($field:ident),+ })?,)+ }) => {
        impl ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                if !f.alternate() {
                    return ::core::fmt::Display::fmt(self, f);
                }
                match self {
                    $(Self::$variant $(($value))? $({ $($field),+ })? => {
                        $(return f.debug_tuple(stringify!($variant)).field($value).finish();)?
                        #[allow(unreachable_code, reason = "a variant with one value has returned")]
                        f.debug_struct(stringify!($variant))
                            $($(.field(stringify!($field), $field))+)?
                            .finish()
                    })+
                }
            }
        }
    };
}
