package main

import (
	"io"
	"strings"
	"testing"
)

// Invalid flags end the command before it starts any server.
func TestRun_RefusesInvalidFlags(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--lanes", "0"}, "--lanes must be at least 1"},
		{[]string{"serve"}, "there are no arguments"},
		{[]string{"--layout", "ledgers"}, `--layout is "ledgers", must be ledger or table`},
		{[]string{"--lane", "2"}, "flag provided but not defined"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			t.Parallel()
			err := run(t.Context(), test.args, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
