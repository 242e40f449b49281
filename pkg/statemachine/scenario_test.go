package statemachine_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestScenarios plays each file of testdata/scenarios and compares the effects of its
// events with the file. Run with -rewrite to rewrite the files, and commit them only if you
// understand the change.
//
// A file opens with a comment paragraph that says why its story matters. Then it names a
// job with its steps, the bus of the deployment (Service Bus, or the pull queue), and what
// of their policy matters:
//
//	job one two bus=queue timeout=40m dispatch=30s,2m ack=1m execution=30s max-attempts=2
//
// Anything that it leaves out is as in [policy]: an ACK within 30s, a lease of 15m. Then it
// applies events to the job (the words are those of [verbs]):
//
//	+30s ack one#1
//
// is the ACK of the first attempt of step one, 30 seconds after the start of
// the story. All times are relative to that start. An event without a time comes at the
// time of the one before. With any event, held says that a new row must not go out yet, and
// bus=queue or bus=servicebus that a process of that bus applies the event. The lines that
// are indented below an event are its effects:
//
//	applied, rev 3
//	job        DISPATCHING → IN_PROGRESS
//	one        AWAITING_ACK → IN_PROGRESS, attempt 1, deadline +15m30s, spent nothing
//	next       timer +15m30s
//	history    step.in_progress, job.in_progress
//
// If there is no line for a step, the outbox row or a directive, the event neither changed
// nor made it. -rewrite writes all indented lines, so an author lists only the events.
func TestScenarios(t *testing.T) {
	t.Parallel()
	for _, path := range scenarios(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			t.Parallel()
			text := read(t, path)
			_, want, err := play(path, text)
			if err != nil {
				t.Fatal(err)
			}
			if *rewrite {
				replace(t, path, want)
				return
			}
			if diff := cmp.Diff(strings.Split(text, "\n"), strings.Split(want, "\n")); diff != "" {
				t.Errorf("%s tells another story (-file +machine):\n%s", path, diff)
			}
		})
	}
}

// TestScenarios_WalkEveryEdge checks that the stories together walk each edge of the
// transition tables and apply each event.
func TestScenarios_WalkEveryEdge(t *testing.T) {
	t.Parallel()
	edges, said := map[string]bool{}, map[string]bool{}
	for _, path := range scenarios(t) {
		s, _, err := play(path, read(t, path))
		if err != nil {
			t.Fatal(err)
		}
		for i := range s.history {
			if at := &s.history[i]; walked(at) {
				edges[string(at.Object)+" "+at.From+" -> "+at.To] = true
			}
		}
		maps.Copy(said, s.verbs)
	}
	for object := range phase1 {
		for _, edge := range listed(object) {
			if !edges[string(object)+" "+edge] {
				t.Errorf("no scenario walks the edge %s of a %s", edge, object)
			}
		}
	}
	for verb := range verbs {
		if !said[verb] {
			t.Errorf("no scenario brings the event %s", verb)
		}
	}
}

// TestScenarios_RejectInvalidFiles plays files with a mistake; each error names the line.
func TestScenarios_RejectInvalidFiles(t *testing.T) {
	t.Parallel()
	const why = "# A worker that is heard twice must not be paid twice, and nobody\n" +
		"# but the machine can tell the one from the other here.\n\n"
	tests := []struct{ name, text, want string }{
		{"no why", "job one\naccept\n", "f.txt:1: a scenario opens with a paragraph"},
		{"a why of two words", "# Because so.\n\njob one\naccept\n", "f.txt:1: a scenario opens with a paragraph"},
		{"an unfinished why", strings.TrimSuffix(why, ".\n\n") + "\n\njob one\naccept\n", "f.txt:1: a scenario opens with a paragraph"},
		{"no job", why + "accept\n", `f.txt:4: "accept" is no job`},
		{"no steps", why + "job timeout=1m\n", `f.txt:4: "job timeout=1m" is no job with its steps`},
		{"no events", why + "job one\n", "f.txt: nothing happens to a job"},
		{"an unknown policy", why + "job one color=red\n", `f.txt:4: unknown word "color=red"`},
		{"an empty value", why + "job one timeout=\n", `f.txt:4: unknown word "timeout="`},
		{"a bad number", why + "job one max-attempts=many\n", `f.txt:4: "many" is no number`},
		{"a bad delay", why + "job one ack=1m,soon\n", `f.txt:4: "soon" is no duration`},
		{"a bad bus", why + "job one bus=kafka\n", `f.txt:4: "kafka" is no bus`},
		{"a bad bus of an event", why + "job one\naccept bus=kafka\n", `f.txt:5: "kafka" is no bus`},
		{"an unknown event", why + "job one\naccept\nexplode\n", `f.txt:6: unknown event "explode"`},
		{"a time alone", why + "job one\n+1s\n", `f.txt:5: nothing happens at that time`},
		{"a bad time", why + "job one\n+1 accept\n", `f.txt:5: "1" is no duration`},
		{"a time in the past", why + "job one\n+2s accept\n\n+1s pause\n", "f.txt:7: +1s lies in the past"},
		{"a time without a sign", why + "job one\naccept\ndeadline-passed outage=1m\n", `f.txt:6: "1m" is no time`},
		{"no attempt", why + "job one\naccept\nack\n", "f.txt:6: it needs to say which attempt"},
		{"a step for an attempt", why + "job one\naccept\nack one\n", `f.txt:6: unknown word "one"`},
		{"an attempt without a number", why + "job one\naccept\nack one#x\n", `f.txt:6: "x" is no number`},
		{"no status", why + "job one\naccept\nresult one#1\n", "f.txt:6: it needs to say which status"},
		{"a bad status", why + "job one\naccept\nresult one#1 DONE\n", `f.txt:6: unknown word "DONE"`},
		{"a word of another event", why + "job one\naccept\nack one#1 permanent\n", `f.txt:6: unknown word "permanent"`},
		{"a word twice", why + "job one\naccept\nack one#1 one#1\n", `f.txt:6: unknown word "one#1"`},
		{"an unknown step", why + "job one\naccept\nretry two\n", `f.txt:6: unknown word "two"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := play("f.txt", test.text)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

// scenarios returns the paths of all scenarios.
func scenarios(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	return slices.Sorted(slices.Values(paths))
}

// read returns the text of a file.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// replace replaces the file atomically: other tests may be reading it.
func replace(t *testing.T, path, text string) {
	t.Helper()
	fresh := path + ".new"
	if err := os.WriteFile(fresh, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, path); err != nil {
		t.Fatal(err)
	}
}
