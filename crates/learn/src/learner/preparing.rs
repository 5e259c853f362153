//! A learner of a raw table: features are made of its rows, by moments on which all nodes agree in the first round.
//!
//! ```text
//! before it is agreed    own moments make the features
//! round 1                own moments are published, and nothing is trained
//! adopted                the mean of everybody's moments makes the features from then on
//! later rounds           what was agreed on is published again, so that latecomers get it with the mean
//! ```
//!
//! Where nothing is exchanged, the node's own moments stay. What was adopted once is never changed: a member that says
//! something else later moves nobody who was there before.
//!
//! Under a promise of privacy, or under masks, there is no such round, since moments tell of rows. What the spec says of the columns makes the features
//! then ([`public_moments`]): it is the same for everybody, whatever a node's rows are.

use std::sync::Arc;

use burn::tensor::Device;
use fednode_core::spec::TableColumn;
use fednode_core::{FederationSpec, Round};
use fednode_data::table::{Treatment, moments, n_moments, public_moments};
use fednode_data::{Samples, Split};
use fednode_onnx::{Graph, Value};
use serde::{Deserialize, Serialize};

use super::{Learner, columns};
use crate::algorithm::{Part, Role};
use crate::class_statistics::upload;
use crate::error::LearnError;
use crate::memory::Memory;
use crate::model::{Initial, Net};
use crate::weights::{self, Weights};

/// What a node knows of the columns of its raw table.
pub(super) struct Preparation {
    columns: Vec<TableColumn>,
    raw: Arc<Split>,
    /// What makes the features where no row of this node may have a part in them.
    public: Option<Vec<f64>>,
    treatment: Treatment,
    /// The moments, as they are published.
    pub(super) moments: Part,
    /// Whose the moments are that make the features; nothing before the node has published any.
    known: Option<Known>,
}

/// Whose moments make the features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Known {
    /// The node's own.
    Own,
    /// Those on which nodes agreed.
    Agreed,
}

impl Preparation {
    /// Begins with the own moments; what is published is zero, as it is on all nodes in the beginning.
    pub(super) fn new(spec: &FederationSpec, raw: Arc<Split>, device: &Device) -> Self {
        let columns = spec.data.columns.clone();
        let net = Net::arrays(&[(
            "preparation.moments",
            &[n_moments(&columns)],
            Initial::Zeros,
        )]);
        let role = if spec.exchange.prepares {
            Role::Shared
        } else {
            Role::Private
        };
        let hides = spec.privacy.hides_rows();
        let public = hides.then(|| exact(public_moments(&columns)));
        let own = || own_moments(&columns, &raw.train);
        Self {
            treatment: Treatment::of(&columns, &public.clone().unwrap_or_else(own)),
            moments: Part::new(role, net, 0, 0, device),
            columns,
            raw,
            public,
            known: None,
        }
    }

    /// Returns the moments before any are agreed on.
    fn first_moments(&self) -> Vec<f64> {
        let own = || own_moments(&self.columns, &self.raw.train);
        self.public.clone().unwrap_or_else(own)
    }

    /// Returns the features of all samples of this node.
    pub(super) fn split(&self) -> Arc<Split> {
        let treated = |samples: &Samples| samples.treated(&self.treatment);
        Arc::new(Split {
            train: treated(&self.raw.train),
            validation: treated(&self.raw.validation),
            test: treated(&self.raw.test),
        })
    }

    /// Checks that rows have the columns.
    ///
    /// # Errors
    /// Says how many they have instead.
    pub(super) fn check(&self, samples: &Samples) -> Result<(), LearnError> {
        let expected = [1, 1, self.columns.len()];
        if samples.shape == expected {
            return Ok(());
        }
        Err(LearnError::SampleShape {
            got: samples.shape,
            expected,
        })
    }

    /// Returns the features of other samples.
    pub(super) fn features(&self, samples: &Samples) -> Samples {
        samples.treated(&self.treatment)
    }

    /// Returns how many columns a raw row has.
    pub(super) fn n_columns(&self) -> usize {
        self.columns.len()
    }

    /// Writes into a graph what [`Self::features`] computes.
    pub(super) fn emit(&self, graph: &mut Graph, rows: Value) -> Value {
        columns::emit(&self.treatment.describe(), graph, rows)
    }

    /// Puts the own moments where they are published.
    fn publish(&mut self, device: &Device) {
        let own = self.first_moments();
        self.moments.weights = Weights::new(vec![upload(&own, device)]);
        self.known = Some(Known::Own);
    }

    /// Makes the treatment of the moments that the node remembers, or of its own rows.
    fn fit(&mut self) {
        let moments = match self.known.filter(|_| self.public.is_none()) {
            Some(_) => {
                let values = weights::values(&self.moments.weights.tensor(0));
                values.into_iter().map(f64::from).collect()
            }
            None => self.first_moments(),
        };
        self.treatment = Treatment::of(&self.columns, &moments);
    }

    /// Returns what is remembered besides numbers; nothing before anything was published.
    pub(super) fn memory(&self) -> Option<Memory> {
        self.known.as_ref().map(Memory::of)
    }
}

/// Returns moments as exact as they travel, so that a restart makes the same features.
fn exact(moments: Vec<f64>) -> Vec<f64> {
    let round = |value: f64| f64::from(value as f32);
    moments.into_iter().map(round).collect()
}

fn own_moments(columns: &[TableColumn], samples: &Samples) -> Vec<f64> {
    let all: Vec<u32> = (0..samples.len() as u32).collect();
    let mut rows = Vec::new();
    samples.write_batch(&all, &mut rows);
    exact(moments(columns, &rows))
}

impl Learner {
    /// Tells whether features are made by moments that are still the node's own, and will not be for long.
    pub(super) fn waits_for_moments(&self) -> bool {
        let preparation = self.parts.preparation.as_ref();
        preparation.is_some_and(|preparation| {
            preparation.moments.role == Role::Shared && preparation.known != Some(Known::Agreed)
        })
    }

    /// Tells whether nodes agree on columns in a round instead of training, and puts the own moments where they are
    /// published unless others were agreed on.
    pub(super) fn prepares_in(&mut self, round: Round) -> bool {
        let device = &self.parts.device;
        let preparation = self.parts.preparation.as_mut();
        if let Some(preparation) = preparation.filter(|own| own.known != Some(Known::Agreed)) {
            device.run(|| preparation.publish(device.tensors()));
        }
        self.schedule.prepares_in(round)
    }

    /// Makes the features anew by the moments that were adopted, unless that was done before.
    pub(super) fn adopt_moments(&mut self) {
        let device = &self.parts.device;
        let waits = self.waits_for_moments();
        if let Some(preparation) = self.parts.preparation.as_mut().filter(|_| waits) {
            preparation.known = Some(Known::Agreed);
            device.run(|| preparation.fit());
            self.data = preparation.split();
            // What was added up of other features is added up anew with the next update.
            if let Some(agreement) = &mut self.parts.agreement {
                agreement.forget_gathered();
            }
            // A line of the own rows takes no training, so a node that never trains has one, too.
            if let Some(regression) = &mut self.parts.regression {
                let first = Round(1);
                let samples = self.data.train.in_round(first.0, self.training.rounds);
                device.run(|| regression.gather(first, &samples, device.tensors()));
            }
        }
    }

    /// Makes the features of a raw table by what the spec says of its columns, as under a promise of privacy, from now on. Returns
    /// whether there is such a table. It is for a learner that has not trained yet.
    pub fn prepare_by_spec(&mut self) -> bool {
        let device = &self.parts.device;
        let Some(preparation) = &mut self.parts.preparation else {
            return false;
        };
        preparation.public = Some(exact(public_moments(&preparation.columns)));
        device.run(|| preparation.fit());
        self.data = preparation.split();
        true
    }

    /// Remembers what a state says of the moments, and makes the features of these raw samples.
    ///
    /// # Errors
    /// Refuses a memory that is none.
    pub(super) fn recall_moments(
        &mut self,
        memory: Option<&Memory>,
        raw: Option<Arc<Split>>,
    ) -> Result<(), LearnError> {
        let known = memory.map(Memory::read).transpose()?;
        let device = &self.parts.device;
        if let Some(preparation) = &mut self.parts.preparation {
            preparation.known = known;
            if let Some(raw) = raw {
                preparation.raw = raw;
            }
            device.run(|| preparation.fit());
            self.data = preparation.split();
        }
        Ok(())
    }
}
