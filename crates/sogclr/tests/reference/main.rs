//! Our numerics against independent sources: PyTorch golden data (`reference/` makes it), plain f64 loops and
//! finite differences.

mod augment;
mod bf16;
mod clip;
mod definitions;
mod engines;
mod files;
mod joint;
mod joint_steps;
mod linear;
mod losses;
mod losses_f64;
mod optim;
mod pairs;
mod paths;
mod rand_augment;
mod resnet;
mod step;
mod tokenizer;
mod transformers;
mod vit;
