//! Promise: pictures are read and prepared as Pillow and `transformers` do it, and whatever a file holds ends in pixels or in an
//! error that says what is wrong (references: tests/tools/make_picture_references.py).

#[allow(dead_code)] // others use the rest
#[path = "common/npz.rs"]
mod npz;
mod picture_support;

use npz::Npz;
use picture_support::{file, fixture, png, png_header};
use proptest::prelude::*;
use strata::picture::{Grid, PictureError, Pixels, Preprocess, decode, read_picture, resize};

fn references() -> Npz {
    Npz::open(&fixture("references.npz"))
}

fn encoder(patch_size: u32, min_tokens: u32, max_tokens: u32) -> Preprocess {
    Preprocess { patch_size, merge: 2, mean: [0.48, 0.45, 0.4], std: [0.26, 0.25, 0.27], min_tokens, max_tokens }
}

/// Largest and mean difference of bytes.
fn difference(ours: &[u8], theirs: &[u8]) -> (u8, f64) {
    assert_eq!(ours.len(), theirs.len());
    let each = || ours.iter().zip(theirs).map(|(a, b)| a.abs_diff(*b));
    (each().max().unwrap_or(0), each().map(f64::from).sum::<f64>() / ours.len() as f64)
}

#[test]
fn lossless_files_are_read_as_pillow_reads_them() {
    let mut references = references();
    for name in ["photo.png", "alpha.png", "grey.png", "palette.png", "lossless.webp", "alpha.webp", "frames.gif"] {
        let theirs = references.bytes(&format!("{}_rgb", name.replace('.', "_")));
        assert_eq!(difference(&decode(&file(name)).unwrap().rgb, &theirs), (0, 0.0), "{name}");
    }
}

/// Decoders may differ in how they round and how they spread colours that were stored coarsely.
#[test]
fn lossy_files_are_read_nearly_so_and_upright() {
    let mut references = references();
    let names = ["photo.jpg", "progressive.jpg", "cmyk.jpg", "lossy.webp", "turned3.jpg", "turned6.jpg", "turned8.jpg"];
    for name in names {
        let ours = decode(&file(name)).unwrap();
        let (most, mean) = difference(&ours.rgb, &references.bytes(&format!("{}_rgb", name.replace('.', "_"))));
        assert!(most <= 5 && mean < 0.6, "{name}: {most} at most, {mean:.2} in the mean");
        let upright = if ["turned6.jpg", "turned8.jpg"].contains(&name) { (30, 40) } else { (ours.width, ours.height) };
        assert_eq!((ours.width, ours.height), upright, "{name}");
    }
}

#[test]
fn scaling_is_pillows_bicubic_to_the_byte() {
    let mut references = references();
    let photo = decode(&file("photo.png")).unwrap();
    for (width, height) in [(93, 61), (32, 32), (128, 96), (93, 40), (17, 61), (8, 200), (1, 1)] {
        let theirs = references.bytes(&format!("{width}x{height}_scaled"));
        assert_eq!(difference(&resize(&photo, width, height).rgb, &theirs), (0, 0.0), "{width} x {height}");
    }
}

#[test]
fn sizes_are_those_of_smart_resize() {
    let sizes = references().ints("sizes");
    let mut compared = 0;
    for case in sizes.chunks_exact(6) {
        let [height, width, least, most, rows, columns] = case else { panic!("six numbers") };
        let (least, most) = (*least as u32 / 1024, *most as u32 / 1024);
        let ours = encoder(16, least, most).fitted(*width as u32, *height as u32).unwrap().merged(2);
        let theirs = Grid { rows: *rows as u32 / 32, columns: *columns as u32 / 32 };
        // Theirs may go beyond the limit where a side is raised to a whole token; an encoder has no room for that.
        if theirs.patches() <= most as usize {
            assert_eq!(ours, theirs, "{width} x {height}, {least} to {most} tokens");
            compared += 1;
        }
    }
    assert!(compared > 700, "{compared}");
}

#[test]
fn patches_are_those_of_qwens_image_processor() {
    let mut references = references();
    let prepared = read_picture(&file("photo.png"), &encoder(4, 4, 60)).unwrap();
    assert_eq!(references.ints("patches_grid"), [prepared.grid.rows as i32, prepared.grid.columns as i32]);
    let theirs = references.floats("patches");
    assert_eq!(prepared.values.len(), theirs.len());
    for (ours, theirs) in prepared.values.iter().zip(&theirs) {
        assert!((ours - theirs).abs() < 1e-5, "{ours} is not {theirs}");
    }
    assert_eq!(prepared.tokens() * 4, prepared.grid.patches());
}

#[test]
fn what_is_no_picture_is_told_so() {
    let wanted = encoder(16, 8, 64);
    let read = |bytes: &[u8]| read_picture(bytes, &wanted).unwrap_err();
    assert_eq!(read(b""), PictureError::Empty);
    for text in [b"Hello".as_slice(), b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", b"BM\0\0", b"\x89PNG"] {
        assert_eq!(read(text), PictureError::UnknownFormat, "{text:?}");
    }
    let mentions = |error: PictureError, words: &str| assert!(error.to_string().contains(words), "{error}");
    mentions(read(&png_header(100_000, 100_000)), "100000 x 100000");
    mentions(read(&png_header(20_000, 1)), "20000 x 1");
    mentions(read(&png_header(16_000, 16_000)), "16000 x 16000");
    mentions(read(&png_header(0, 7)), "PNG");
    mentions(read(&png_header(4, 4)), "PNG");
    mentions(read(&png(401, 2, 0)), "200 times");
}

#[test]
fn a_file_that_breaks_off_is_told_so() {
    for name in ["photo.png", "photo.jpg", "progressive.jpg", "turned6.jpg", "lossless.webp", "lossy.webp", "frames.gif"] {
        let whole = file(name);
        // Behind the pixels of the first frame come other frames, or checksums and ends that are not needed to see it.
        let enough = if name == "frames.gif" { whole.len() / 2 } else { whole.len() - 20 };
        for cut in (0..enough).step_by(7) {
            assert!(decode(&whole[..cut]).is_err(), "{name} after {cut} of {} bytes", whole.len());
        }
    }
}

fn any_pixels() -> impl Strategy<Value = Pixels> {
    (1u32..40, 1u32..40).prop_flat_map(|(width, height)| {
        let bytes = proptest::collection::vec(any::<u8>(), (width * height * 3) as usize);
        bytes.prop_map(move |rgb| Pixels { width, height, rgb })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_damaged_file_never_panics(
        which in 0usize..13,
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let names = ["photo.png", "alpha.png", "grey.png", "palette.png", "photo.jpg", "progressive.jpg", "cmyk.jpg",
            "turned6.jpg", "lossless.webp", "alpha.webp", "lossy.webp", "frames.gif", "turned3.jpg"];
        let mut bytes = file(names[which]);
        for (at, value) in hits {
            // Headers decide the most.
            let at = if value % 2 == 0 { at.index(bytes.len()) } else { at.index(64) };
            bytes[at] = value;
        }
        if let Ok(pixels) = decode(&bytes) {
            prop_assert_eq!(pixels.rgb.len(), pixels.width as usize * pixels.height as usize * 3);
        }
    }

    #[test]
    fn sizes_keep_to_the_limits(width in 1u32..9000, height in 1u32..9000, least in 1u32..40, room in 0u32..5000) {
        let wanted = encoder(16, least, least + room);
        match wanted.fitted(width, height) {
            Err(error) => {
                let is_thin = matches!(error, PictureError::TooThin { .. });
                prop_assert!(is_thin && width.max(height) > 200 * width.min(height));
            }
            Ok(grid) => {
                let tokens = grid.merged(2).patches();
                prop_assert!((1..=(least + room) as usize).contains(&tokens), "{} tokens", tokens);
                prop_assert_eq!((grid.rows % 2, grid.columns % 2), (0, 0));
                // As long as there is room for it, a picture has the tokens that it must.
                prop_assert!(tokens >= least as usize || room < 3 * least.max(200));
            }
        }
    }

    /// Patch `p` of group `g` holds the pixels of its square, channel by channel.
    #[test]
    fn patches_lie_in_the_order_of_their_groups(pixels in any_pixels()) {
        let wanted = Preprocess { mean: [0.0; 3], std: [1.0; 3], ..encoder(2, 1, 50) };
        let prepared = wanted.prepare(&pixels).unwrap();
        let (rows, columns) = (prepared.grid.rows as usize, prepared.grid.columns as usize);
        let scaled = resize(&pixels, columns as u32 * 2, rows as u32 * 2);
        let mut place = 0;
        for group_row in 0..rows / 2 { for group_column in 0..columns / 2 {
            for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let (row, column) = (group_row * 2 + row, group_column * 2 + column);
                for channel in 0..3 { for y in 0..2 { for x in 0..2 {
                    let pixel = (row * 2 + y) * columns * 2 + column * 2 + x;
                    prop_assert_eq!(prepared.values[place], f32::from(scaled.rgb[pixel * 3 + channel]) / 255.0);
                    place += 1;
                } } }
            }
        } }
        prop_assert_eq!(place, prepared.values.len());
    }

    #[test]
    fn equal_pictures_have_equal_digests_and_others_do_not(pixels in any_pixels(), at in any::<prop::sample::Index>()) {
        // Of a size that is not scaled, where every pixel shows.
        let size = Pixels { width: 32, height: 32, rgb: pixels.rgb.iter().cycle().take(32 * 32 * 3).copied().collect() };
        let wanted = encoder(16, 1, 9);
        let first = wanted.prepare(&size).unwrap();
        prop_assert_eq!(first.identity(), wanted.prepare(&size).unwrap().identity());
        let mut other = size;
        let at = at.index(other.rgb.len());
        other.rgb[at] ^= 1;
        prop_assert_ne!(first.identity(), wanted.prepare(&other).unwrap().identity());
    }
}
