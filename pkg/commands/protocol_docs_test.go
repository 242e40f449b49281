package commands_test

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/commands"
)

// guide is the page for people who write protocol files.
func protocolGuide(t *testing.T) string {
	t.Helper()
	return string(musttest.ReadFile(t, "../../docs/use/protocols.md"))
}

func TestTheGuideNamesEveryKeyAndNoOther(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\| (file|step|both) \\|").FindAllStringSubmatch(protocolGuide(t), -1) {
		got[row[1]] = row[2]
	}
	if diff := cmp.Diff(commands.ProtocolKeys(), got); diff != "" {
		t.Errorf("keys and where they may stand (-want +got):\n%s", diff)
	}
}
