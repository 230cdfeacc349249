// Inputs that `quantise` rounded: `(128 * high + low) * scale`, both signed bytes. Of 32 columns there are eight words of high
// bytes, eight of low bytes, the scale, the sums of the first and of the last sixteen in steps, and a word that is not used.
const ROUNDED_WORDS: u32 = 20u;
const ROUNDED_LOW: u32 = 8u;
const ROUNDED_SCALE: u32 = 16u;
const ROUNDED_SUMS: u32 = 17u;
// Steps of the largest of 32 inputs.
const ROUNDED_STEPS: f32 = 16256.0;
