package protocol_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/protocol"
)

// guide is the page for people who write protocol files.
func guide(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/protocols.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// block is a fenced block of the page.
type block struct{ kind, text string }

// blocks returns the fenced blocks in their order.
func blocks(page string) []block {
	var found []block
	for _, match := range regexp.MustCompile("(?ms)^```(\\w[\\w ]*)\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		found = append(found, block{match[1], match[2]})
	}
	return found
}

func TestTheGuidesExamples(t *testing.T) {
	t.Parallel()
	all := blocks(guide(t))
	count := map[string]int{}
	for i, b := range all {
		count[b.kind]++
		registry, err := protocol.LoadFS(folder("invoice.yaml", b.text))
		switch b.kind {
		case "yaml":
			if err != nil || len(registry.Protocols()) != 1 {
				t.Errorf("example %d is refused: %v\n%s", i, err, b.text)
			}
		case "yaml refused":
			if err == nil || i+1 == len(all) || all[i+1].kind != "text" {
				t.Fatalf("example %d is not refused, or no text says how", i)
			}
			if diff := cmp.Diff(strings.Split(strings.TrimSpace(all[i+1].text), "\n"), faults(t, err)); diff != "" {
				t.Errorf("example %d, faults (-want +got):\n%s", i, diff)
			}
		}
	}
	if count["yaml"] < 3 || count["yaml refused"] < 1 {
		t.Errorf("the guide has %v, are the examples still found?", count)
	}
}

func TestTheGuideNamesEveryKeyAndNoOther(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\| (file|step|both) \\|").FindAllStringSubmatch(guide(t), -1) {
		got[row[1]] = row[2]
	}
	if diff := cmp.Diff(protocol.Keys(), got); diff != "" {
		t.Errorf("keys and where they may stand (-want +got):\n%s", diff)
	}
}
