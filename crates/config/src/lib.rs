//! Configuration that documents itself.
//!
//! ```text
//!                       ┌─► the struct, its defaults, serde
//! config! { … } ────────┼─► TableDoc ─► sample:    the commented file
//!   one definition      │           ├─► layers:    flags > variables > file > defaults
//!   of each key         │           ├─► flags:     the command line (feature `flags`)
//!                       │           └─► spelling:  the nearest valid name
//!                       └─► validation stays with whoever declares the struct
//! ```
//!
//! A key is declared once, with its documentation, type and default. Everything else about it is derived, so the sample
//! file, the flags and the code cannot disagree. Unknown names are errors that offer the nearest valid one.
//!
//! This crate reads no file and no variable: texts and tables come in from outside.
//!
//! ```
//! use fednode_config::{config, parse, sample};
//! config! {
//!     /// A kettle.
//!     pub struct Kettle {
//!         /// When it whistles, in degrees Celsius (20 to 100).
//!         degrees: u32 = 100 => "DEGREES",
//!     }
//! }
//! let text = sample(&Kettle::default(), &Kettle::doc());
//! assert_eq!(text, "# A kettle.\n# When it whistles, in degrees Celsius (20 to 100).\ndegrees = 100\n\n");
//! assert_eq!(parse::<Kettle>(&text), Ok(Kettle::default()));
//! let error = parse::<Kettle>("degres = 3").unwrap_err().to_string();
//! assert_eq!(error, "line 1: unknown key `degres`: did you mean `degrees`?");
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod doc;
#[cfg(feature = "flags")]
pub mod flags;
pub mod layers;
mod read;
mod sample;
mod spelling;
mod variables;

pub use doc::{Entry, KeyDoc, TableDoc, is_path};
pub use read::{ConfigError, explain, from_table, in_range, parse, to_table};
pub use sample::sample;
pub use spelling::unknown_name;

/// Declares a documented configuration struct.
///
/// Fields are `name: Type = default`, and may go on with `=> "VALUE"`, what help calls the value. A field that opens a
/// documented table is marked `@table`. A field whose name outside its table is another one, as a flag or in an old file
/// without tables, is marked `@flat("name")`. A field that is no key is marked `@hidden`, and serde must skip it.
#[macro_export]
macro_rules! config {
    (
        $(#[doc = $struct_doc:literal])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $(#[serde($($serde:tt)*)])?
                $(@$mark:ident $(($flat:literal))?)? $field:ident : $type:ty = $default:expr
                $(=> $value:literal)?
            ),* $(,)?
        }
    ) => {
        $(#[doc = $struct_doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        $vis struct $name {
            $( $(#[doc = $doc])* $(#[serde($($serde)*)])? $vis $field: $type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )* }
            }
        }

        impl $name {
            /// Returns the documentation of this table's keys.
            #[allow(dead_code, reason = "not every table of a private module writes a sample")]
            $vis fn doc() -> $crate::TableDoc {
                $crate::TableDoc {
                    lines: vec![$(String::from($struct_doc)),*],
                    keys: Vec::<Option<$crate::KeyDoc>>::from([$(
                        $crate::config!(@is_key $($mark)?).then(|| $crate::KeyDoc {
                            key: stringify!($field),
                            flat: $crate::config!(@flat $($mark $(($flat))?)? $field),
                            lines: vec![$(String::from($doc)),*],
                            value: $crate::config!(@value $($value)?),
                            is_path: $crate::is_path::<$type>(),
                            table: $crate::config!(@table $($mark $(($flat))?)? $type),
                        })
                    ),*])
                    .into_iter()
                    .flatten()
                    .collect(),
                }
            }
        }
    };
    (@is_key hidden) => { false };
    (@is_key $($mark:ident)?) => { true };
    (@table table $type:ty) => { Some(<$type>::doc()) };
    (@table $mark:ident ($flat:literal) $type:ty) => { None };
    (@table hidden $type:ty) => { None };
    (@table $type:ty) => { None };
    (@flat flat ($flat:literal) $field:ident) => { $flat };
    (@flat $mark:ident $field:ident) => { stringify!($field) };
    (@flat $field:ident) => { stringify!($field) };
    (@value $value:literal) => { Some($value) };
    (@value) => { None };
}
