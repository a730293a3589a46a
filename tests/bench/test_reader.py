"""The bench of the reader: a given one runs against a plain loop on its encoder."""

from readers import tiny_reader


def test_a_given_reader_is_timed_against_the_plain_loop(bench, tmp_path):
    place = tiny_reader().save_pretrained(tmp_path / "reader")
    pairs = [("who was king", "the first king of the old city " * 12), ("where", "by the great river")]
    found = bench("reader").one_reader(str(place), pairs, rounds=1)
    assert found["tokens"] > 80
    assert found["reader : plain loop (at least 2)"] > 0
    assert found["plain loop, questions per second"] > 0
