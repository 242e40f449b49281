package bench

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/lucius-project/lucius/pkg/commands"
)

func TestTheProtocolsLoad(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "protocols")
	if err := writeProtocols(dir); err != nil {
		t.Fatal(err)
	}
	registry, err := commands.LoadProtocols(dir)
	if err != nil {
		t.Fatal(err)
	}
	for requestType, want := range map[string]struct {
		steps   int
		service string
	}{
		requestType(1): {1, service}, requestType(3): {3, service}, liveType: {1, liveService}, waitingType: {1, waitingService},
		lineType: {1, waitingService},
	} {
		found, ok := registry.Lookup(requestType)
		if !ok || len(found.Steps) != want.steps || found.Steps[0].Service != want.service {
			t.Errorf("%s: %+v, want %+v", requestType, found, want)
		}
	}
}

func TestProtocolsNeedTheirFolder(t *testing.T) {
	t.Parallel()
	if err := writeProtocols(filepath.Join(t.TempDir(), "missing", "protocols")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
