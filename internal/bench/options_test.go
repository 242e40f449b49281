package bench_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/bench"
	"github.com/lucius-project/lucius/pkg/protocol"
)

func TestOptionsThatMakeNoSenseAreNamed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*bench.Options){
		"BaseURL":      func(o *bench.Options) { o.BaseURL = "127.0.0.1:8080" },
		"Dir":          func(o *bench.Options) { o.Dir = "" },
		"Out":          func(o *bench.Options) { o.Out = nil },
		"ServerPID":    func(o *bench.Options) { o.ServerPID = -1 },
		"Steps":        func(o *bench.Options) { o.Steps = []int{1, 2} },
		"Submitters":   func(o *bench.Options) { o.Submitters = -1 },
		"Pullers":      func(o *bench.Options) { o.Pullers = 65 },
		"PayloadBytes": func(o *bench.Options) { o.PayloadBytes = 10 },
		"Duration":     func(o *bench.Options) { o.Duration = -1 },
		"WarmUp":       func(o *bench.Options) { o.WarmUp = -1 },
		"Drain":        func(o *bench.Options) { o.Drain = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := short(t, "http://127.0.0.1:1")
			change(&options)
			_, err := bench.Measure(t.Context(), options)
			if err == nil || !strings.HasPrefix(err.Error(), "bench: "+name+" ") {
				t.Errorf("error %v does not name %s", err, name)
			}
		})
	}
}

func TestParseSteps(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]int{"1": {1}, "3": {3}, "both": {1, 3}} {
		got, err := bench.ParseSteps(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, diff)
		}
	}
	if _, err := bench.ParseSteps("2"); err == nil || !strings.Contains(err.Error(), `"2"`) {
		t.Errorf("2: error %v", err)
	}
}

func TestTheProtocolsLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := bench.WriteProtocols(dir); err != nil {
		t.Fatal(err)
	}
	registry, err := protocol.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for requestType, want := range map[string]int{"bench.one": 1, "bench.three": 3} {
		found, ok := registry.Lookup(requestType)
		if !ok || len(found.Steps) != want {
			t.Errorf("%s: %+v, want %d steps", requestType, found, want)
		}
	}
}

func TestProtocolsNeedTheirFolder(t *testing.T) {
	t.Parallel()
	if err := bench.WriteProtocols(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
