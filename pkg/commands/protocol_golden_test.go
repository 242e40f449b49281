package commands_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/commands"
)

// Each folder of testdata/refused holds files that are refused together, and in want.txt
// the lines of the error.
func TestFoldersThatAreRefused(t *testing.T) {
	t.Parallel()
	wants, err := filepath.Glob("testdata/refused/*/want.txt")
	if err != nil || len(wants) == 0 {
		t.Fatalf("%v, %d cases", err, len(wants))
	}
	for _, want := range wants {
		dir := filepath.Dir(want)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			text := musttest.ReadFile(t, want)
			registry, err := commands.LoadProtocolsFS(os.DirFS(dir))
			if err == nil || registry != nil {
				t.Fatalf("Load = %v, %v, want an error", registry, err)
			}
			if diff := cmp.Diff(strings.Split(strings.TrimSpace(string(text)), "\n"), protocolFaults(t, err)); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}
