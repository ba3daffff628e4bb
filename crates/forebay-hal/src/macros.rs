//! Macros that devices and tools share. Not part of the stable interface.

/// Implements `Debug` for an error: `{:?}` prints the message and `{:#?}` the structure. A `main` that returns an error
/// prints it with `Debug`, and should tell its user what happened.
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

/// Declares an enum whose variants have names: `Variant = "name"`. Gives it `ALL`, `name` and `Display`.
#[doc(hidden)]
#[macro_export]
macro_rules! named_enum {
    ($(#[$about:meta])* pub enum $type:ident {
        $($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?
    }) => {
        $(#[$about])*
        pub enum $type {
            $($(#[$doc])* $variant,)+
        }

        impl $type {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in commands, files and messages.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }

        impl ::core::fmt::Display for $type {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

/// Declares the methods of a builder, each of which sets the field of its name: `field: Type;`.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)+) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field.into();
            self
        }
    )+};
}

/// Declares a device's optional groups, each given if the device has the capability: `method: Group if CAPABILITY;`.
#[doc(hidden)]
#[macro_export]
macro_rules! optional_groups {
    ($($method:ident: $group:ident if $capability:ident;)+) => {$(
        fn $method(&self) -> Option<&dyn $crate::$group> {
            let capabilities = self.descriptor().capabilities;
            capabilities.contains($crate::Capabilities::$capability).then_some(self as _)
        }
    )+};
}
