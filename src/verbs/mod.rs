//! One file for each verb: it parses, calls the library, prints.

pub mod advise;
pub mod bench;
pub mod check;
pub mod compare;
pub mod config;
pub mod demo;
pub mod embed;
pub mod eval;
pub mod eval_pairs;
pub mod export;
pub mod loss;
pub mod manifest;
pub mod pack;
pub mod plan;
pub mod pretrain;
pub mod report;
pub mod reproduce;
pub mod resume;
pub mod search;
pub mod shell;
pub mod theory;
pub mod views;
