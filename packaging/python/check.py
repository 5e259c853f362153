"""Uses every part of the installed package in a new folder, and fails where it does not do what it says."""
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import fednode

WARDS = ("lund", "malmo")


def main(folder):
    folder.mkdir(parents=True)
    tables = [table(folder / f"{ward}.csv", seed) for seed, ward in enumerate(WARDS)]
    run = runs(folder, tables)
    model_of(run, tables[0])
    numbers(folder)
    digits(folder)
    is_interrupted(folder / "interrupted")
    federation(folder / "real", tables)
    errors(folder)
    print(f"a swarm and a simulation of own tables, a model, a federation of {len(WARDS)} by ticket")


def table(path, seed):
    """Writes a table with gaps and words, in which two columns tell most of the outcome."""
    random.seed(seed)
    lines = ["patient,age,pain,pressure,outcome"]
    for number in range(160):
        age, pain = random.gauss(55, 10), random.choice(["none", "mild", "strong"])
        sick = age / 10 + {"none": 0, "mild": 1, "strong": 3}[pain] + random.gauss(0, 1) > 6.7
        pressure = "" if random.random() < 0.1 else f"{random.gauss(120, 15):.0f}"
        lines.append(f"p{number},{age:.1f},{pain},{pressure},{'sick' if sick else 'healthy'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def runs(folder, tables):
    own = [f"csv:{path},label=outcome" for path in tables]
    run = fednode.swarm(out=folder / "swarm", own=own, rounds=2, seed=3, settings={"training.batch_size": 20})
    assert run.alone is not None and run.interval is not None
    assert 0.6 < run.served <= 1 and run.interval[0] <= run.served - run.alone <= run.interval[1]
    assert len(run.nodes) == 2 and {record["round"] for record in run.records()} >= {1, 2}
    simulated = fednode.simulate(own=own, rounds=2, seed=3, settings={"training.batch_size": 20})
    assert simulated.alone is None and abs(simulated.served - run.served) < 0.05
    expect("a simulation none", simulated.model, 1)
    expect("no finished run", fednode.Run, folder)
    return run


def model_of(run, path):
    rows = [dict(zip(("patient", "age", "pain", "pressure", "outcome"), line.split(",")))
            for line in path.read_text().splitlines()[1:]]
    for row in rows:
        del row["patient"], row["outcome"]
        row["age"], row["pressure"] = float(row["age"]), float(row["pressure"]) if row["pressure"] else None
    with run.model(1) as model:
        assert sorted(model.classes) == ["healthy", "sick"]
        found = model(rows, explain=True)
        assert len(found) == len(rows) and all(abs(sum(one.probabilities.values()) - 1) < 1e-4 for one in found)
        assert all(abs(one.probability - max(one.probabilities.values())) < 1e-6 for one in found)
        # `not a number` is a gap, as it is in a data frame.
        row = {**rows[0], "pressure": None}
        assert model([row]) == model([{**row, "pressure": float("nan")}])
        expect("column `age`", model, [{**rows[0], "age": "old"}])
        expect("give a list", model, rows[0])
        expect("cannot be sent", model, [{**rows[0], "age": float("inf")}])
        # Objects that are like mappings, lists in the order of the columns, and more than one request takes.
        assert model([collections.UserDict(rows[0])]) == model(rows[:1])
        names = [column["name"] for column in model.card["input"]["columns"]]
        assert model([[rows[0][name] for name in names]]) == model(rows[:1])
        many = model(rows[:3] * 7000)
        assert [one.sample for one in many] == list(range(21000)) and many[20999].index == found[2].index
        # Several threads may ask one model.
        answers = [None] * 4
        threads = [threading.Thread(target=ask, args=(model, rows, answers, place)) for place in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert all(answer == answers[0] for answer in answers)
    expect("the model is closed", model, rows)
    killed = run.model(1)
    killed._process.kill()
    expect("ended by SIGKILL", killed, rows)
    expect("the model is closed", killed, rows)
    held_to_predict(run, path, found)
    ends_with_its_program(run)
    outlives_forks(run, rows)


def ends_with_its_program(run):
    """A server is gone soon after the program that started it was killed."""
    file = run.folder / "models" / "1.safetensors"
    code = f"import fednode, os; model = fednode.load({str(file)!r}); print(model._process.pid, flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    server = pathlib.Path(f"/proc/{int(done.stdout)}")
    end = time.monotonic() + 20
    while server.exists():
        assert time.monotonic() < end, "the server outlived its program"
        time.sleep(0.05)


def outlives_forks(run, rows):
    """A fork that ends takes nothing along, and one that goes on does not keep the server."""
    model = run.model(1)
    told, said = os.pipe()
    sys.stdout.flush()
    if (fork := os.fork()) == 0:
        os.close(told)
        sys.exit(0)
    os.waitpid(fork, 0)
    assert model(rows[:1]) and pathlib.Path(model._log).exists()
    if (fork := os.fork()) == 0:
        os.close(said)
        os.read(told, 1)
        os._exit(0)
    began = time.monotonic()
    model.close()
    assert time.monotonic() - began < 5, "a fork kept the server"
    os.close(said)
    os.waitpid(fork, 0)


def is_interrupted(folder):
    """Ctrl-C of the program that simulates leaves what can be gone on from."""
    code = "import fednode, sys; fednode.simulate(out=sys.argv[1], data='digits', nodes=3, rounds=100000, model='mlp')"
    process = subprocess.Popen([sys.executable, "-c", code, folder], stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not folder.exists():
        assert process.poll() is None and time.monotonic() < end, "the simulation has not begun"
        time.sleep(0.1)
    time.sleep(4)  # Some rounds.
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert (folder / "snapshot").exists(), list(folder.iterdir())


def ask(model, rows, answers, place):
    answers[place] = model(rows)


def held_to_predict(run, path, found):
    """The function says what `fednode predict` says of the same table."""
    file = run.folder / "models" / "1.safetensors"
    done = subprocess.run([fednode.program(), "predict", "--model", file, path, "--json"], capture_output=True, text=True, check=True)
    said = [line for line in json.loads(done.stdout)]
    assert [one["class"] for one in said] == [one.index for one in found]
    assert all(abs(one["probability"] - other.probability) < 1e-5 for one, other in zip(said, found))


def numbers(folder):
    """A model of a number answers with that number, in the unit of its column, as `fednode predict` does."""
    paths = []
    for start, ward in enumerate(WARDS):
        rows = [(age, age % 3, 40 + 1.5 * age - 4 * (age % 3)) for age in range(20 + start, 80, 2)]
        path = folder / f"dose-{ward}.csv"
        path.write_text("age,stage,dose\n" + "".join(f"{age},{stage},{dose}\n" for age, stage, dose in rows))
        paths.append(path)
    run = fednode.swarm(out=folder / "doses", own=[f"csv:{path},target=dose" for path in paths], seed=3)
    with run.model(1) as model:
        assert model.card["predicts_number"] and model.classes == ["dose"]
        found = model([{"age": 30, "stage": 0}, {"age": 60, "stage": 1}], explain=True)
        assert [one.name for one in found] == ["dose", "dose"]
        assert all(one.probability is None and one.probabilities is None for one in found)
        assert all(abs(one.number - dose) < 6 for one, dose in zip(found, (85, 126))), found
    new = folder / "new.csv"
    new.write_text("age,stage\n30,0\n60,1\n")
    file = run.folder / "models" / "1.safetensors"
    done = subprocess.run([fednode.program(), "predict", "--model", file, new, "--json"], capture_output=True, text=True, check=True)
    assert all(abs(one["number"] - other.number) < 1e-3 for one, other in zip(json.loads(done.stdout), found))


def digits(folder):
    """A model of images takes bytes, and says what it does not take."""
    run = fednode.swarm(out=folder / "digits", data="digits", nodes=2, rounds=1, samples_per_node=120, no_control=True)
    assert run.alone is None and run.interval is None
    with run.model(2) as model:
        assert model.card["input"]["kind"] == "image"
        [one] = model([grey_png(8, 8)])
        assert one.name in model.classes and 0 < one.probability <= 1 and one.probabilities is None
        expect("images[0]", model, [b"no image"])
        assert len(model([grey_png(8, 8) + bytes(1 << 20)] * 20)) == 20, "21 MB of images"
        expect("cannot be read", model, ["missing.png"])
        expect("scale images first", model, [grey_png(8, 8) + bytes(8 << 20)])


def grey_png(width, height):
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + bytes([128]) * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def federation(folder, tables):
    """An organiser and a member by ticket, from tables to served models."""
    here = "/ip4/127.0.0.1/tcp/0"
    sources = [f"csv:{path},label=outcome" for path in tables]
    expect("--privacy open", fednode.init, folder / "unsaid", nodes=2, data=sources[0])
    organiser = fednode.init(folder / "lund", name="lund", nodes=2, rounds=2, data=sources[0], privacy="open")
    with organiser.start(listen=here):
        ticket = fednode.invite("malmo", organiser.folder)
        with fednode.join(ticket, folder / "malmo", data=sources[1], listen=here) as member:
            member.start()
            expect("runs already", member.start)
            member.wait(120)
            organiser.wait(120)
            assert fednode.run("advise", "--all")["advice"] and fednode.run("algorithms")
            expect("says nothing in JSON", fednode.run, "completions", "bash")
            status = organiser.status()
            assert status["finished"] and status["round"] == status["rounds"] == 2, status
            assert member.evaluate()["score"]["accuracy"] > 0.5
        with organiser.model() as model:
            assert model([{"age": 80, "pain": "strong", "pressure": 150}])[0].name == "sick"
    assert organiser.stop() is None
    lonely = fednode.init(folder / "lonely", nodes=2, rounds=2, data="digits", partition="iid")
    with lonely.start(listen=here, shard="1/2"):
        try:
            lonely.wait(1.5)
        except TimeoutError as error:
            assert "waits for" in str(error), error
        else:
            raise AssertionError("a node alone has finished")
    expect("no daemon runs", organiser.status)


def errors(folder):
    expect("node.toml", fednode.Node, folder)
    expect("not both", fednode.load)
    expect("no_such.safetensors", fednode.load, folder / "no_such.safetensors")
    expect("above 0", fednode.simulate, data="digits", lr=-1)
    taken = folder / "taken"
    taken.mkdir()
    (taken / "summary.json").write_text("{}")
    # What lies there is of another run.
    expect("is not empty: name another folder with --out", fednode.swarm, data="digits", out=taken)
    code = expect("missing.csv", fednode.swarm, own=["csv:missing.csv,label=x"] * 2)
    assert code == 4, code


def expect(words, function, *arguments, **options):
    """Holds that a call fails with one line that has these words. Returns the exit code."""
    try:
        function(*arguments, **options)
    except fednode.Error as error:
        assert words in str(error) and "\n" not in str(error), error
        return error.code
    raise AssertionError(f"nothing was wrong with {arguments}, and `{words}` was expected")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
