// Command house carries out a command, a claim, a RESULT and an ACK timeout on the embedded
// store, and writes for each the functions that ran, as coverage counters of this program. No
// background loop runs at the same time, so the counters hold only the path that a reader has to
// follow. `make house` builds it with counters, and prints them:
//
//	request ──► pkg/server ──► … ──► store      counters/command, /claim, /result
//	sweeper ──► pkg/ledger ──► … ──► store      counters/timeout
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/coverage"
	"testing/fstest"
	"time"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

var protocols = fstest.MapFS{"greeting.yaml": {Data: []byte(`
protocol_id: greeting_v1
request_types: [greeting]
steps:
  - {step_id: greet, step_type: GREET, service: greeter}
`)}}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: house FOLDER, in which the counters are written: see tools/house")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "house:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, counters string) (err error) {
	data, err := os.MkdirTemp("", "lucius")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	store, err := pebblestore.Open(pebblestore.Options{Dir: data})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	registry, err := commands.LoadProtocolsFS(protocols)
	if err != nil {
		return err
	}
	s, err := server.Open(ctx, server.Config{
		Store: store, Protocols: commands.NewProtocolHolder(registry), HTTP: httpapi.Config{Auth: auth.New(auth.Config{})},
	})
	if err != nil {
		return err
	}
	sweeper := background.NewSweeper(background.SweeperConfig{Ledger: s.UseCases().Ledger})
	h := &house{server: s, sweeper: sweeper, counters: counters}

	// The first operation of each kind also runs what runs once in a process.
	for _, name := range []string{"first-", ""} {
		if err := h.live(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

type house struct {
	server   http.Handler
	sweeper  *background.Sweeper
	counters string // the folder of the counters
	requests int    // so far
}

// live carries out each operation once, and counts it under its name after the prefix.
func (h *house) live(ctx context.Context, prefix string) error {
	var item struct {
		WorkID string `json:"work_id"`
		Rev    int64  `json:"rev"`
		Status string `json:"status"`
	}
	claim := func(start bool) error {
		var claimed struct {
			Items []json.RawMessage `json:"items"`
		}
		err := h.ask(ctx, "/v1/work:claim", map[string]any{
			"owner": "w", "services": []string{"greeter"}, "lease_seconds": 1, "start": start,
		}, &claimed)
		if err == nil && len(claimed.Items) != 1 {
			err = fmt.Errorf("claimed %d items, want 1", len(claimed.Items))
		}
		if err != nil {
			return err
		}
		return json.Unmarshal(claimed.Items[0], &item)
	}
	submit := func() error {
		return h.ask(ctx, "/v1/commands", map[string]any{
			"tenant_id": "t", "request_type": "greeting", "schema_version": "1", "payload": map[string]any{},
			"input_ref": map[string]any{"uri": "s3://in"}, "output_ref": map[string]any{"uri": "s3://out"},
			"idempotency_key": fmt.Sprint("k", h.requests),
		}, nil)
	}
	for _, step := range []struct {
		operation string
		do        func() error
	}{
		{"command", submit},
		{"claim", func() error { return claim(true) }},
		{"result", func() error {
			return h.ask(ctx, "/v1/work/"+item.WorkID+":complete",
				map[string]any{"owner": "w", "expected_rev": item.Rev, "result_ref": map[string]any{"uri": "s3://result"}}, nil)
		}},
		{"", submit},
		{"", func() error { return claim(false) }},
	} {
		if err := h.count(prefix, step.operation, step.do); err != nil {
			return err
		}
	}
	for end := time.Now().Add(time.Minute); item.Status != "stalled"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("the deadline of the claim did not pass")
		}
		if err := h.count(prefix, "timeout", func() error {
			_, err := h.sweeper.RunOnce(ctx)
			return err
		}); err != nil {
			return err
		}
		if err := h.ask(ctx, "/v1/work/"+item.WorkID, nil, &item); err != nil {
			return err
		}
	}
	return nil
}

// count does an operation and writes the counters of what ran, unless it has no name.
func (h *house) count(prefix, operation string, do func() error) error {
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	if err := do(); err != nil || operation == "" {
		return err
	}
	dir := filepath.Join(h.counters, prefix+operation)
	if err := os.RemoveAll(dir); err != nil { // A pass that fired nothing was counted before.
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return errors.Join(coverage.WriteMetaDir(dir), coverage.WriteCountersDir(dir))
}

// ask sends a request, GET without a body, and decodes the answer.
func (h *house) ask(ctx context.Context, path string, body map[string]any, answer any) error {
	method, text := http.MethodGet, []byte(nil)
	if body != nil {
		h.requests++
		if _, verb := body["owner"]; verb {
			body["request_id"] = fmt.Sprint("r", h.requests)
		}
		method = http.MethodPost
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r := httptest.NewRequestWithContext(ctx, method, "http://127.0.0.1"+path, bytes.NewReader(text))
	r.RemoteAddr = "127.0.0.1:1"
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.server.ServeHTTP(w, r)
	if w.Code >= http.StatusMultipleChoices {
		return fmt.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(w.Body.Bytes(), answer)
}
