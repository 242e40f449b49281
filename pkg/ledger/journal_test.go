package ledger_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

func TestHistory_NamesTheCallerWithinABound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(command("h"))
	caller := ledger.WithCaller(t.Context(), "x"+strings.Repeat("é", 300))
	if _, err := b.Change(caller, id, statemachine.Cancel{}, ledger.By("client", "r")); err != nil {
		t.Fatal(err)
	}
	history := b.Past(id)
	first, last := history[0].Caller, history[len(history)-1].Caller
	if first != "" {
		t.Errorf("a change without a caller names %q", first)
	}
	if len(last) != 511 || !strings.HasPrefix(last, "xé") || !utf8.ValidString(last) {
		t.Errorf("the caller has %d bytes: %q", len(last), last)
	}
}
