//! Tables of a driver library's functions, found by name when the library is opened.
//!
//! The crates that declare the interfaces would end the process where a library or a function is missing, and would make a Rust
//! enum of a number that a newer driver sends. So their declarations are used, and their calls are not: a table holds every function
//! that we call, all of them are looked up before the first call, and results are numbers until they have been looked at.

use std::ffi::CString;

use libloading::Library;

/// A function that a library does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingFunction(pub &'static str);

/// The address of a function.
///
/// # Safety
/// `F` must be the type of the function of that name.
pub unsafe fn find<F: Copy>(library: &'static Library, name: &'static str) -> Result<F, MissingFunction> {
    let terminated = CString::new(name).map_err(|_| MissingFunction(name))?;
    // SAFETY: the caller vouches for the type.
    let symbol = unsafe { library.get::<F>(terminated.as_bytes_with_nul()) };
    symbol.map(|found| *found).map_err(|_| MissingFunction(name))
}

/// Declares a table of functions that return a code, of which 0 is success. `$declared::$function` is the declaration they must
/// agree with, which the compiler proves.
macro_rules! function_table {
    (
        $(#[$doc:meta])*
        pub struct $table:ident: $declared:ident extern $abi:literal -> $code:ty;
        $(fn $name:ident($($arg:ident: $type:ty),* $(,)?);)*
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        #[derive(Debug)]
        pub struct $table {
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl $table {
            /// # Errors
            /// The first function that the library does not have.
            pub fn find(library: &'static ::libloading::Library) -> Result<$table, $crate::backend::device::MissingFunction> {
                use $crate::backend::device::find;
                // SAFETY: the types are those of the vendor's declarations, with the code as the number it is.
                Ok($table { $($name: unsafe { find(library, stringify!($name)) }?,)* })
            }

            $(
                /// # Safety
                /// That of the vendor's function.
                pub unsafe fn $name(&self, $($arg: $type),*) -> Result<(), $crate::backend::device::DriverError> {
                    // SAFETY: the caller's.
                    let code = unsafe { (self.$name)($($arg),*) };
                    $crate::backend::device::DriverError::check(stringify!($name), code)
                }
            )*
        }

        $(const _: unsafe extern $abi fn($($type),*) -> $code = $declared::$name;)*
    };
}

pub(in crate::backend) use function_table;
