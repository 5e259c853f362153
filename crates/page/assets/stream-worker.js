// The connection to fednode, away from the page's thread: reads the events and hands on what changed.
//
//     connecting ──event──► live ──error──► lost ──(browser or we try again)──► live
//                            └──goodbye──► ended        lost ──403──► refused
//
// Each node tells all its peers with every event: of 200 nodes that is 10 MB a second. Hardly any of it is news, and the
// page's thread would read nothing else. The browser connects again by itself, unless the server answered with an error.
// Then we try, ever more seldom.

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 15000;
// Round trips and times of connection change all the time; so often they are news.
const PEERS_PAUSE = 10000;

const known = new Map();
let pause = FIRST_PAUSE;
let isNew = true;
let source = null;

const tell = (name, said) => self.postMessage({ name, said, isNew, at: Date.now() });
const connection = (state) => tell("connection", state);

function take(name, handle) {
  source.addEventListener(name, (event) => {
    let said;
    try {
      said = JSON.parse(event.data);
    } catch {
      // A torn event tells nothing. The next one tells all anew.
      return;
    }
    handle(said);
  });
}

function connect() {
  source = new EventSource("/events");
  source.onopen = () => {
    pause = FIRST_PAUSE;
    isNew = true;
    known.clear();
    connection("live");
  };
  source.onerror = () => {
    connection("lost");
    if (source.readyState === EventSource.CLOSED) again();
  };
  take("federation", (said) => {
    known.clear();
    tell("federation", said);
    isNew = false;
  });
  take("node", (said) => {
    thin(said);
    tell("node", said);
  });
  for (const name of ["rounds", "summary", "log"]) take(name, (said) => tell(name, said));
  take("goodbye", () => {
    source.close();
    connection("ended");
  });
}

// Takes out what the page knows already.
function thin(said) {
  const before = known.get(said.index) ?? { peers: null, experts: null, at: 0 };
  const after = { ...before };
  // An event that does not name them says nothing of them.
  if ("peers" in said) {
    const now = Date.now();
    after.peers = (said.peers ?? []).map(newsOf).join("\n");
    if (after.peers === before.peers && now - before.at <= PEERS_PAUSE) delete said.peers;
    else after.at = now;
  }
  if ("experts" in said) {
    after.experts = JSON.stringify(said.experts ?? null);
    if (after.experts === before.experts) delete said.experts;
  }
  known.set(said.index, after);
}

const newsOf = (peer) => `${peer.node_id} ${peer.route} ${peer.relay} ${peer.why} ${peer.software} ${peer.score.toFixed(1)}`;

async function again() {
  source.close();
  connection(await isRefused() ? "refused" : "lost");
  setTimeout(connect, pause);
  pause = Math.min(pause * 2, LONGEST_PAUSE);
}

// Finds out whether the server is there and does not know this browser.
async function isRefused() {
  try {
    const answer = await fetch("/assets/icon.svg", { cache: "no-store" });
    return answer.status === 401 || answer.status === 403;
  } catch {
    return false;
  }
}

connect();
