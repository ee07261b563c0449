//! A method that is not of this crate: another program brings its [`Spec`], and run folders name it.

use super::Spec;
use crate::loss::{Loss, LossError, LossInput, LossOutput};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The name of the method, and in the program that brings it the method itself.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct External {
    /// What its program calls the method.
    name: String,
    #[serde(skip)]
    spec: Option<Arc<dyn Spec>>,
}

impl External {
    /// `spec` under a name of its own.
    pub fn new(name: &str, spec: Arc<dyn Spec>) -> Self {
        Self { name: name.to_owned(), spec: Some(spec) }
    }

    /// What its program calls the method.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this program has the method.
    pub fn is_here(&self) -> bool {
        self.spec.is_some()
    }

    /// The method; where this program does not have it, one that refuses to train.
    pub fn spec(&self) -> &dyn Spec {
        self.spec.as_deref().unwrap_or(&Elsewhere)
    }
}

impl PartialEq for External {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for External {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "External({:?})", self.name)
    }
}

/// Stands for a method that this program does not have.
struct Elsewhere;

impl Spec for Elsewhere {
    fn loss(&self) -> Box<dyn Loss> {
        Box::new(Self)
    }
}

impl Loss for Elsewhere {
    fn forward(&self, _: &LossInput) -> Result<LossOutput, LossError> {
        Err(LossError::Elsewhere)
    }
}
