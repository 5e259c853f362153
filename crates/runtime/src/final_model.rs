//! What remains when all rounds are done: the model as a safetensors file with a card that says what it is.

use std::fs;
use std::io;
use std::path::Path;

use fednode_core::work::Evaluations;
use fednode_core::{FederationId, FederationSpec, NodeId, ParamSet, PoolOutcome, Round};
use fednode_files::whole_file;
use serde::{Deserialize, Serialize};

use crate::status::RoundRecord;
use crate::trainer::TrainerCard;

/// Folder of the final model in the state folder.
pub const FOLDER: &str = "final";

/// What the model is: `final/card.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// Who trained it.
    pub node_id: NodeId,
    /// In which federation.
    pub federation: FederationId,
    /// The federation's name.
    pub name: String,
    /// The federated algorithm.
    pub algorithm: String,
    /// Rounds of training.
    pub rounds: u32,
    /// The last round.
    pub round: Round,
    /// Seed of the federation.
    pub seed: u64,
    /// Model, data and device.
    pub trainer: TrainerCard,
    /// What the last round came to.
    pub last_record: Option<RoundRecord>,
    /// How good the model is after the stage that follows the last round, if the algorithm has one.
    #[serde(default)]
    pub finished: Option<Evaluations>,
    /// What became of the pool of private modules, if there was one.
    #[serde(default)]
    pub pool: Option<PoolOutcome>,
    /// Version of the software.
    pub version: String,
}

impl ModelCard {
    /// Describes a model of a federation.
    pub fn new(
        spec: &FederationSpec,
        node_id: NodeId,
        trainer: TrainerCard,
        record: Option<RoundRecord>,
    ) -> Self {
        Self {
            node_id,
            federation: spec.id(),
            name: spec.name.clone(),
            algorithm: spec.algorithm.clone(),
            rounds: spec.rounds,
            round: record.as_ref().map_or(Round::ZERO, |record| record.round),
            seed: spec.seed,
            trainer,
            last_record: record,
            finished: None,
            pool: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Writes model and card, each whole or not at all.
///
/// # Errors
/// Fails if the disk does.
pub(crate) fn write(state: &Path, model: &ParamSet, card: &ModelCard) -> io::Result<()> {
    let folder = state.join(FOLDER);
    fs::create_dir_all(&folder)?;
    whole_file::write(&folder.join("model.safetensors"), &model.to_bytes())?;
    // The card last: where it is, the model beside it is whole.
    let mut json = serde_json::to_vec_pretty(card)?;
    json.push(b'\n');
    whole_file::write(&folder.join("card.json"), &json)
}

/// Returns the card of a model that was written before, if it is this federation's after its last round.
pub(crate) fn read_card(state: &Path, spec: &FederationSpec) -> Option<ModelCard> {
    let text = fs::read(state.join(FOLDER).join("card.json")).ok()?;
    let card: ModelCard = serde_json::from_slice(&text).ok()?;
    // Where rounds were added, the model of an earlier end is not the last.
    let is_last = card.federation == spec.id() && card.rounds == spec.rounds;
    is_last.then_some(card)
}

/// Returns after which round the final model of a state folder was made; 0 if there is none of this federation.
pub(crate) fn end_of(state: &Path, federation: FederationId) -> Round {
    let text = fs::read(state.join(FOLDER).join("card.json")).ok();
    let card = text.and_then(|text| serde_json::from_slice::<ModelCard>(&text).ok());
    let card = card.filter(|card| card.federation == federation);
    card.map_or(Round::ZERO, |card| Round(card.rounds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_and_card_can_be_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut model = ParamSet::new();
        model.insert("w", &[2], vec![1.0, 2.0]).unwrap();
        let me = NodeId::from_bytes([1; 32]);
        let card = ModelCard::new(&FederationSpec::default(), me, TrainerCard::default(), None);
        write(folder.path(), &model, &card).unwrap();
        let read = |name: &str| fs::read(folder.path().join(FOLDER).join(name)).unwrap();
        assert_eq!(ParamSet::decode(&read("model.safetensors")).unwrap(), model);
        assert_eq!(
            serde_json::from_slice::<ModelCard>(&read("card.json")).unwrap(),
            card
        );
        assert_eq!(
            fs::read_dir(folder.path().join(FOLDER)).unwrap().count(),
            2,
            "no draft is left"
        );
    }
}
