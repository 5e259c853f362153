//! What is sent where, and what each field says of a node's data. Whoever adds a field writes here what it says.

/// What is sent where: a heading, what it is, and the types that the bytes there decode to.
pub(crate) const CHANNELS: &[(&str, &str, &[&str])] = &[
    (
        "Adverts",
        "Gossip and sync bring them to all members. Each is signed by its author.",
        &["SignedAdvert", "Advert"],
    ),
    (
        "On a new connection",
        "Two nodes say this to each other before anything else. A stranger gets the greeting alone.",
        &["Greeting", "HelloReply"],
    ),
    (
        "Words of the organiser",
        "Every member has all of them.",
        &["SignedStatement", "Statement"],
    ),
    (
        "Presence and addresses",
        "Members tell each other who is there and where.",
        &[
            "SignedPresence",
            "Presence",
            "PeersRequest",
            "PeersReply",
            "Record",
        ],
    ),
    (
        "Sync",
        "Two members compare what they have heard.",
        &["SyncRequest", "SyncReply"],
    ),
    (
        "Blobs",
        "Parts are fetched by their hashes. Which parts there are, the adverts say.",
        &["BlobAsk", "BlobAnswer"],
    ),
    (
        "Joining",
        "A node with a ticket says this to the organiser's process.",
        &["JoinAsk", "JoinAnswer"],
    ),
];

/// Types of the network crate that are read from bytes and are in no message.
pub(crate) const NO_MESSAGES: &[&str] = &[
    "Compression",
    "Direction",
    "Route",
    "Absent",
    "PeerInfo",
    "TrafficSnapshot",
    "InvitationSecret",
];

/// What a field says of the data of whoever sends it: in an open federation, under masks, and under a promise of ε.
pub(crate) type Says = (&'static str, [&'static str; 3]);

const AS_OPEN: &str = "as open";
const OF_A_TABLE: &str =
    "of a raw table: names, levels, ranges and gaps of the columns that `init` was given";
const WHOM_IT_IS_LIKE: &str = "which parts the node has fetched, so whom its data are like";
const NOT_OF_ONE: &str = "nothing: parts of single nodes are fetched to check sums alone";
const NOT_SENT: &str = "is not sent";
const POST: &str = "no more than ε allows";

/// The fields that say something of a node's data, those in them included.
pub(crate) const SAYING: &[Says] = &[
    (
        "Advert.issued_at",
        [
            "when the node was done: roughly, how many samples it has",
            AS_OPEN,
            AS_OPEN,
        ],
    ),
    (
        "Local.shared",
        [
            "parameters that were trained on the data, and whatever else is averaged: class sums, means of columns, frequencies of classes",
            "a masked vector: nothing by itself",
            POST,
        ],
    ),
    (
        "Local.experts",
        [
            "experts, or sums and products of features: of fewer samples than features, who is in them",
            NOT_SENT,
            POST,
        ],
    ),
    ("ExpertOffer.blob", ["see `Local.experts`", NOT_SENT, POST]),
    (
        "ExpertOffer.samples_routed",
        [
            "how samples fall into groups",
            NOT_SENT,
            "nothing: all count alike",
        ],
    ),
    (
        "Local.proxies",
        [
            "a weighted sum of feature vectors, or means by class",
            NOT_SENT,
            POST,
        ],
    ),
    (
        "ProxyOffer::Inline",
        ["see `Local.proxies`", NOT_SENT, POST],
    ),
    ("ProxyOffer::Blob", ["see `Local.proxies`", NOT_SENT, POST]),
    (
        "InlineProxies.bytes",
        ["see `Local.proxies`", NOT_SENT, POST],
    ),
    (
        "Local.sketches",
        ["what proxies say, more coarsely", NOT_SENT, POST],
    ),
    ("Local.peers", ["who has similar data", NOT_SENT, POST]),
    ("Local.statistics", [NOT_SENT, NOT_SENT, NOT_SENT]),
    (
        "Local.n_samples",
        [
            "how many training samples there are",
            "nothing: it is 0",
            "1, or what the release tells of",
        ],
    ),
    (
        "Member.shared",
        [
            "the part again that its update names",
            "a masked vector: nothing by itself",
            POST,
        ],
    ),
    (
        "Member.weight",
        [
            "how many training samples there are",
            "nothing: all weigh the same",
            POST,
        ],
    ),
    (
        "Global.mean",
        [
            "the mean of the members' parts",
            "the sum of the members, or of a group",
            POST,
        ],
    ),
    (
        "SliceMean.mean",
        [
            "a piece of the mean of the members' parts",
            "is not sent: masked sums are not divided",
            POST,
        ],
    ),
    (
        "PoolOffer.kind",
        ["which module the node offers", "is refused", AS_OPEN],
    ),
    (
        "PoolOffer.blob",
        ["a module that was trained on the data", "is refused", POST],
    ),
    (
        "PoolOffer.score",
        [
            "how good the module is on held-out samples",
            "is refused",
            "as open: held-out samples are not covered",
        ],
    ),
    (
        "Unmask.own_mask",
        [
            NOT_SENT,
            "with all others' words: the sum, and no part",
            NOT_SENT,
        ],
    ),
    (
        "Unmask.shares",
        [NOT_SENT, "see `Unmask.own_mask`", NOT_SENT],
    ),
    ("Entry.value", [OF_A_TABLE, AS_OPEN, AS_OPEN]),
    ("Hello.spec", ["see `Entry.value`", AS_OPEN, AS_OPEN]),
    ("Admitted.spec", ["see `Entry.value`", AS_OPEN, AS_OPEN]),
    ("SyncRequest.holds", [WHOM_IT_IS_LIKE, NOT_OF_ONE, POST]),
    (
        "SyncReply.holds",
        ["see `SyncRequest.holds`", NOT_OF_ONE, POST],
    ),
    (
        "SyncRequest.follows",
        [
            "whom its data are like, in a large federation",
            NOT_OF_ONE,
            POST,
        ],
    ),
    (
        "BlobAsk.blob",
        [
            "whom its data are like, to the node that is asked",
            NOT_OF_ONE,
            POST,
        ],
    ),
    ("Want::Packed.base", [WHOM_IT_IS_LIKE, NOT_OF_ONE, POST]),
    ("BlobAnswer.outcome", [WHOM_IT_IS_LIKE, NOT_OF_ONE, POST]),
    (
        "Digest.heard",
        [
            "whom the node follows, in a large federation",
            NOT_OF_ONE,
            POST,
        ],
    ),
];

/// The fields that say nothing of anybody's data, by the message that has them.
pub(crate) const SILENT: &[(&str, &str)] = &[
    ("SignedAdvert", "payload signature"),
    ("Advert", "federation author sequence round expires_at body"),
    ("Sequence", "incarnation counter"),
    (
        "Body",
        "Local Global Pool Withdraw Leave Fault Propose Agree Unmask Removed Slices",
    ),
    ("Local", "lineage parent follows offer"),
    ("BlobRef", "id size"),
    ("MaskOffer", "mask_key seal_key own_mask threshold holders"),
    ("ShareHolder", "node sealed own_mask mask_key"),
    ("Global", "members parent previous unmasked slices"),
    ("Member", "node advert"),
    ("PoolOffer", "lineage"),
    ("Withdraw", "blobs"),
    ("Fault", "accused evidence actual slice"),
    ("Proposal", "members parent previous"),
    ("Agreement", "survivors"),
    ("Unmask", "survivors"),
    ("Removed", "removals"),
    ("Removal", "owner withdrawn kept"),
    ("Slices", "of means"),
    ("SliceMean", "slice"),
    ("Greeting", "protocol proof certificate"),
    ("SignedStatement", "payload signature"),
    ("HelloReply", "Hello Unwelcome"),
    (
        "Hello",
        "protocol software role federation clock certificate",
    ),
    ("Role", "Node Aggregator"),
    ("Entry", "key"),
    ("Absence", "Unknown Revoked Expired Role"),
    ("Statement", "organiser serial issued_at ruling"),
    ("Ruling", "Admit Revoke Extend"),
    ("Certificate", "node name role not_after"),
    ("Extension", "federation after rounds settings"),
    ("SignedPresence", "payload signature"),
    (
        "Presence",
        "federation node role issued_at seconds certificate",
    ),
    ("PeersRequest", "mine"),
    ("PeersReply", "records"),
    ("SignedRecord", "payload signature"),
    (
        "Record",
        "federation node scope addresses issued_at minutes",
    ),
    ("Scope", "Loopback Network"),
    ("SyncRequest", "digest everything wanted statements"),
    ("Digest", "first last"),
    ("Heard", "author newest seen"),
    ("SyncReply", "adverts more statements"),
    ("BlobAsk", "id want"),
    ("Want", "List Segment Packed Bring"),
    ("Want::Packed", "index width"),
    ("Want::Bring", "size"),
    ("Width", "Two Four"),
    ("BlobAnswer", "id"),
    ("Answer", "Bytes Packed NotHeld Later Failed"),
    ("Answer::Packed", "bytes against"),
    ("JoinAsk", "invitation proof"),
    ("JoinAnswer", "Admitted Refused"),
    ("Admitted", "statements"),
    ("JoinRefusal", "Unknown Used Expired Revoked Broken"),
];
