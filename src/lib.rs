pub mod augment;
pub mod data;
pub mod encoder;
pub mod loss;
pub mod math;
pub mod optim;
pub mod state;
