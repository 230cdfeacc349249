//! Loops that are written out.

/// `each!(4, |j| f(j))` is `[f(0), f(1), f(2), f(3)]`; `each!(4 of x, |y| f(y))` applies to the elements of an array.
///
/// The functions of `std` that do this are not compiled for the vector instructions of the caller, so the compiler
/// cannot always inline a closure that uses them; text has no such limit.
macro_rules! each {
    (2, |$j:ident| $e:expr) => {
        each!(2 of [0usize, 1], |$j| $e)
    };
    (4, |$j:ident| $e:expr) => {
        each!(4 of [0usize, 1, 2, 3], |$j| $e)
    };
    (8, |$j:ident| $e:expr) => {
        each!(8 of [0usize, 1, 2, 3, 4, 5, 6, 7], |$j| $e)
    };
    (2 of $x:expr, |$j:ident| $e:expr) => {{
        let [a, b] = $x;
        [{ let $j = a; $e }, { let $j = b; $e }]
    }};
    (4 of $x:expr, |$j:ident| $e:expr) => {{
        let [a, b, c, d] = $x;
        [{ let $j = a; $e }, { let $j = b; $e }, { let $j = c; $e }, { let $j = d; $e }]
    }};
    (8 of $x:expr, |$j:ident| $e:expr) => {{
        let [a, b, c, d, e, f, g, h] = $x;
        [
            { let $j = a; $e }, { let $j = b; $e }, { let $j = c; $e }, { let $j = d; $e },
            { let $j = e; $e }, { let $j = f; $e }, { let $j = g; $e }, { let $j = h; $e },
        ]
    }};
}
pub(super) use each;
