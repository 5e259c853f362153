# What the commands of the book become in a test. A page is one script: this file, and then its blocks as they are written.
#
# Every command runs as it stands, with four exceptions. Ports are those that the system chooses. There are at most two rounds, six nodes in
# one command, and 60 samples of a data set for each; inputs to replay are early ones. What goes on until it is stopped runs in the
# background. TICKET and ADDRESS are what was printed last.
set -euo pipefail

port=/ip4/127.0.0.1/tcp/0
settings=(FEDNODE_DEVICE=cpu FEDNODE_THREADS=1 FEDNODE_LISTEN=$port FEDBOOT_LISTEN=$port)
declare -A PLACES=([fednode]=state [fedboot]=fedboot-state)
privacy= # What `init` is answered, where a page says that it asks.
declare -A running=() # The processes of nodes, by their state folder or settings.
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

fednode() { play fednode "$@"; }
fedboot() { play fedboot "$@"; }

# A request that is refused is a failure. Where a page has a line for each kind of data, that of images is not for these tables.
curl() {
    [[ $* == *image/* ]] || command curl --silent --show-error --fail-with-body "$@"
}

# play PROGRAM WORDS…: runs a command as it is meant here.
play() {
    local program=$1 words=() word before=
    shift
    for word in "$@"; do
        case $before=$word in
            *=TICKET) word=$(cat "$SCENE/$program.ticket") ;;
            *=ADDRESS) word=$(cat "$SCENE/address") ;;
            --rounds=*) word=$((word < 2 ? word : 2)) ;;
            --nodes=*) word=$((word < 6 ? word : 6)) ;;
            --samples-per-node=*) word=$((word < 60 ? word : 60)) ;;
            --from=*) word=8 ;;
            --until=*) word=12 ;;
            --listen=*) word=$port ;;
            --bind=*) word=127.0.0.1:0 ;;
            --set=serve=*) word=${word%:*}:0 ;;
        esac
        words+=("$word")
        before=$word
    done
    case ${words[0]} in
        swarm | simulate)
            [[ ${words[*]} == *" --rounds "* ]] || words+=(--rounds 2)
            [[ ${words[*]} != *fashion-mnist* || ${words[*]} == *" --samples-per-node "* ]] || words+=(--samples-per-node 60)
            ;;
        init) [ -z "$privacy" ] || words+=(--privacy "$privacy") ;;
        evaluate | predict | export | personalise | report | replay | audit | describe | backup) settle ;;
    esac
    case "$program ${words[*]}" in
        *" --exit-when-finished"* | *" --no-start"*) "$BIN/$program" "${words[@]}" ;;
        *" --dashboard"*) server "$program" "${words[@]}" ;;
        *" start "* | "fednode join "*) member "$program" "${words[@]}" ;;
        *" dashboard"* | *" watch "* | *" serve "* | *" tensorboard "*) server "$program" "${words[@]}" ;;
        *" invite "*) invite "${words[@]}" ;;
        *) "$BIN/$program" "${words[@]}" ;;
    esac
}

# invite WORDS…: keeps the ticket for who joins next.
invite() {
    local of=fednode
    [[ " $* " != *" aggregator "* ]] || of=fedboot
    "$BIN/fednode" "$@" --json | jq -er .ticket >"$SCENE/$of.ticket"
}

# member PROGRAM WORDS…: runs it in the background, and waits until it listens.
member() {
    local program=$1 place
    case " $* " in
        *" --state "*) place=(--state "$(after --state "$@")") ;;
        *" --config "*) place=(--config "$(after --config "$@")") ;;
        *" --dir "*) place=(--state "$(after --dir "$@")/state") ;;
        *) place=(--state "${PLACES[$program]}") ;;
    esac
    place[1]=$(realpath -m "${place[1]}")
    local log=$(mktemp "$SCENE/log.XXXXXX")
    env "${settings[@]}" "$BIN/$program" "${@:2}" >"$log" 2>&1 &
    local status=("$BIN/$program" status --json "${place[@]}") sign=.listeners[0]
    [[ $* != *"listen=[]"* ]] || sign=.node_id
    until "${status[@]}" 2>/dev/null | jq -er "$sign" >"$SCENE/address"; do alive $! "$log"; done
    [ "$program" != fednode ] || running[${place[1]}]=$!
}

# server PROGRAM WORDS…: runs it in the background, and waits until it says where.
server() {
    local log=$(mktemp "$SCENE/log.XXXXXX")
    "$BIN/$1" "${@:2}" >"$log" 2>&1 &
    until grep -q "http://\|round" "$log"; do alive $! "$log"; done
}

# alive PID LOG: waits a moment for a process that must not have ended.
alive() {
    kill -0 "$1" 2>/dev/null || { cat "$2"; echo "it has ended"; exit 1; }
    sleep 0.1
}

# after FLAG WORDS…: prints the word after a flag.
after() {
    local flag=$1 before= word
    shift
    for word in "$@"; do
        [ "$before" != "$flag" ] || { echo "$word"; return; }
        before=$word
    done
}

# settle: waits until the nodes that run are done with all rounds.
settle() {
    local place flag
    for place in "${!running[@]}"; do
        flag=--state
        [[ $place != *.toml ]] || flag=--config
        until "$BIN/fednode" status --json "$flag" "$place" 2>/dev/null | jq -e .finished >/dev/null; do
            # A node that was stopped has ended well.
            kill -0 "${running[$place]}" 2>/dev/null || { wait "${running[$place]}"; break; }
            sleep 0.1
        done
    done
}

# all_stop: ends every process.
all_stop() {
    kill $(jobs -p) 2>/dev/null || true
    wait
    running=()
}

# on NAME: goes to a machine, which is a folder here, with the data that its owner has.
on() {
    mkdir -p "$SCENE/$1"
    cd "$SCENE/$1"
    [ -e a.csv ] || cp -r "$SCENE/data/." .
}

# newest: prints the folder of the newest run.
newest() { ls -td runs/*/ | head -1; }

# third: a third member joins the federation of machine `a`.
third() {
    on a
    fednode invite third --dir ward
    on c
    fednode join TICKET --data csv:c.csv,label=outcome --dir ward
}

# ward: three members, of which `lund` has organised the federation in folder `ward` of machine `a`, and `malmo` is on `b`.
ward() {
    on a
    fednode init ward --nodes 3 --rounds 2 --name lund --data csv:a.csv,label=outcome
    fednode start --config ward/node.toml
    fednode invite malmo --dir ward
    on b
    fednode join TICKET --data csv:b.csv,label=outcome --dir malmo
    third
    on a
}

# demo ALGORITHM: a fedboot in `hub`, and two nodes with digits in `node-1` and `node-2`.
demo() {
    fednode init demo --open --nodes 2 --rounds 2 --data digits --algorithm "$1"
    fedboot start --spec demo/federation.toml --state hub
    fednode start --config demo/node.toml --peers ADDRESS --shard 1/2 --state node-1
    fednode start --config demo/node.toml --peers ADDRESS --shard 2/2 --state node-2
}

# tables: a swarm of three tables without the days of stay, of which the first node is in `node-1` and its model in `model.safetensors`.
tables() {
    local file
    for file in *.csv; do cut -d, -f1,2,4 "$file" >table && mv table "$file"; done
    fednode swarm --own csv:a.csv,label=outcome --own csv:b.csv,label=outcome --own csv:c.csv,label=outcome --rounds 2 --out swarm
    ln -s swarm/nodes/1/state node-1
    fednode export --state node-1 --out model.safetensors
}

# query-patients: a table with a column `patient`, on standard output.
query-patients() { awk '{ print (NR == 1 ? "patient" : "p-" NR) "," $0 }' new-patients.csv; }

# texts: three lists of sayings.
texts() {
    local name row
    for name in a b mine; do
        for row in {1..40}; do
            echo "$((row % 2 + 1)),\"the $([ $((row % 2)) = 0 ] && echo ward is quiet tonight || echo night was long and loud)\""
        done >$name.csv
    done
}

# experiment: a small experiment in `runs/experiment`.
experiment() {
    fednode simulate --nodes 3 --rounds 2 --sweep algorithm=local,fedavg --seeds 1,2 --out runs/experiment
}

# block NUMBERS…: plays blocks of the page.
block() {
    local number
    for number in "$@"; do
        echo "block $number:" && cat "$SCENE/blocks/$number"
        . "$SCENE/blocks/$number"
    done
}
