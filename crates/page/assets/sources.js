// Whose experts answer for whom, with what weight: from the plan in force where a daemon tells it, else from the last record.

// Returns a node's sources by their owner: { weight, similarity }, its own among them. Kept until the node says more.
export function sourcesOf(node) {
  if (node.sources?.version === node.version) return node.sources.found;
  const found = fromPlan(node) ?? fromRecord(node) ?? new Map();
  node.sources = { version: node.version, found };
  return found;
}

function fromPlan(node) {
  const rows = node.experts?.rows?.filter((row) => row.sources.length > 0) ?? [];
  if (rows.length === 0) return null;
  const found = new Map();
  for (const row of rows) {
    for (const source of row.sources) add(found, source.expert.owner, source.weight / rows.length, source.similarity);
  }
  return found;
}

function fromRecord(node) {
  const mixed = node.last?.mixed ?? [];
  if (mixed.length === 0) return null;
  const found = new Map();
  let rest = 1;
  for (const source of mixed) {
    add(found, source.node, source.weight, source.similarity);
    rest -= source.weight;
  }
  if (node.id) add(found, node.id, Math.max(0, rest), 1);
  return found;
}

function add(found, owner, weight, similarity) {
  const entry = found.get(owner);
  if (!entry) return found.set(owner, { weight, similarity });
  entry.weight += weight;
  entry.similarity = Math.max(entry.similarity, similarity);
  return found;
}

// Returns a map of many nodes: rows are who uses, columns are whose.
export function mapOfNodes(state, nodes, measure) {
  const ids = nodes.map((node) => node.id ?? `node ${node.index}`);
  const places = new Map(ids.map((id, place) => [id, place]));
  for (const node of nodes) {
    for (const owner of sourcesOf(node).keys()) {
      if (!places.has(owner)) places.set(owner, places.size);
    }
  }
  const columns = [...places.keys()];
  const values = new Float32Array(nodes.length * columns.length).fill(NaN);
  nodes.forEach((node, row) => {
    for (const [owner, source] of sourcesOf(node)) values[row * columns.length + places.get(owner)] = source[measure];
  });
  return { rows: ids, columns, values };
}

// Returns a map of one node: rows are its own experts, columns are whose experts are mixed in.
export function mapOfExperts(node, measure) {
  const rows = (node.experts?.rows ?? []).filter((row) => row.sources.length > 0);
  const columns = [...new Set(rows.flatMap((row) => row.sources.map((source) => source.expert.owner)))];
  const places = new Map(columns.map((id, place) => [id, place]));
  const values = new Float32Array(rows.length * columns.length).fill(NaN);
  rows.forEach((row, at) => {
    for (const source of row.sources) {
      const place = at * columns.length + places.get(source.expert.owner);
      const before = Number.isNaN(values[place]) ? 0 : values[place];
      values[place] = measure === "weight" ? before + source.weight : Math.max(before, source.similarity);
    }
  });
  return { rows: rows.map((row) => `expert ${row.slot}`), columns, values };
}
