//! Our numerics against independent sources: PyTorch golden data (`reference/` makes it), plain f64 loops and
//! finite differences.

mod augment;
mod files;
mod linear;
mod losses;
mod losses_f64;
mod optim;
mod paths;
mod rand_augment;
mod resnet;
mod step;
