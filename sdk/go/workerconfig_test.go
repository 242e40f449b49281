package lucius_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

func TestRunNamesWhatIsWrongWithTheConfiguration(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*lucius.WorkerConfig){
		"Parallel is -1":    func(c *lucius.WorkerConfig) { c.Parallel = -1 },
		"Lease is 2s":       func(c *lucius.WorkerConfig) { c.Lease = 2 * time.Second },
		"Lease is 25h0m0s":  func(c *lucius.WorkerConfig) { c.Lease = 25 * time.Hour },
		"an empty name":     func(c *lucius.WorkerConfig) { c.Services = []string{""} },
		"at most 64":        func(c *lucius.WorkerConfig) { c.Services = slices.Repeat([]string{"s"}, 64) },
		"ClaimWait is 2m0s": func(c *lucius.WorkerConfig) { c.ClaimWait = 2 * time.Minute },
		"Version is 129":    func(c *lucius.WorkerConfig) { c.Version = strings.Repeat("1", 129) },
		"Grace is -1ns":     func(c *lucius.WorkerConfig) { c.Grace = -1 },
	} {
		cfg := newQueue(t).config()
		change(&cfg)
		w := lucius.NewWorker(cfg)
		w.Handle("OCR", succeed)
		if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if err := lucius.NewWorker(newQueue(t).config()).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "it has no handler") {
		t.Errorf("a worker without handlers: %v", err)
	}
	defer func() {
		if text := fmt.Sprint(recover()); text != `lucius: the step type "OCR" has two handlers` {
			t.Errorf("a second handler: %s", text)
		}
	}()
	newQueue(t).worker(succeed).Handle("OCR", succeed)
}

func TestAWorkerDoesTheStepsOfItsServices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, want := range [][]string{{"ocr"}, {"ocr", "embed", "index"}, {"embed", "index"}, nil} {
			q := newQueue(t)
			cfg := q.config()
			cfg.Service, cfg.Services, cfg.Lease, cfg.Version = "", want, 30*time.Second, "2.4.1"
			if len(want) > 0 && want[0] == "ocr" {
				cfg.Service, cfg.Services = "ocr", want[1:]
			}
			w := lucius.NewWorker(cfg)
			w.Handle("OCR", succeed)
			stop := start(t, w)
			synctest.Wait()
			stop()
			if claim := q.made("claim")[0].Body; !slices.Equal(claim.Services, want) || claim.Lease != 30 || claim.Version != "2.4.1" || claim.Host == "" {
				t.Errorf("the claim of version %q on %q asks for a lease of %gs for %q, want 30s for %q",
					claim.Version, claim.Host, claim.Lease, claim.Services, want)
			}
		}
	})
}
