pub mod encoder;
pub mod loss;
pub mod math;
pub mod optim;
pub mod state;
