//! Closed sets whose values are labels: in metrics, on screen and in the HTTP API.

/// Defines enums with a label per variant, also in JSON.
#[macro_export]
macro_rules! labels {
    (@meaning doc = $text:literal) => { $text };
    (@meaning $($other:tt)*) => { "" };
    ($($(#[$($meta:tt)*])* pub enum $kind:ident {
        $($(#[$($doc:tt)*])* $variant:ident = $label:literal),* $(,)?
    })*) => { $(
        $(#[$($meta)*])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
            serde::Serialize, serde::Deserialize,
        )]
        pub enum $kind {
            $($(#[$($doc)*])* #[serde(rename = $label)] $variant),*
        }

        impl $kind {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $label),* }
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        $crate::label_schema!(
            $kind,
            concat!($($crate::labels!(@meaning $($meta)*)),*),
            $(concat!($($crate::labels!(@meaning $($doc)*)),*)),*
        );
    )* };
}

/// Nothing: the values are not described to OpenAPI.
#[cfg(not(feature = "openapi"))]
#[doc(hidden)]
#[macro_export]
macro_rules! label_schema {
    ($($any:tt)*) => {};
}

/// The values as a schema of OpenAPI, with what the whole set is about and the meaning of each: the text of the doc
/// comments.
#[cfg(feature = "openapi")]
#[doc(hidden)]
#[macro_export]
macro_rules! label_schema {
    ($kind:ident, $($meaning:expr),*) => {
        impl $crate::utoipa::PartialSchema for $kind {
            fn schema() -> $crate::utoipa::openapi::RefOr<$crate::utoipa::openapi::Schema> {
                let labels = Self::ALL.iter().map(|one| one.as_str());
                $crate::openapi::label_schema(&[$($meaning),*], labels)
            }
        }

        impl $crate::utoipa::ToSchema for $kind {}
    };
}
