package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// luciusSystem is a Lucius server on a separate data folder, with workers that pull from
// it.
type luciusSystem struct {
	client  *http.Client
	url     string
	process *exec.Cmd
	dir     string
	ends    *tracker

	environment []string
	drop        func(context.Context) error // nil without a database

	requests   atomic.Int64
	pulling    sync.WaitGroup
	stopClaims context.CancelFunc
}

// buildLucius builds the server from its module as releases are built, without C.
func buildLucius(ctx context.Context, module, binary string) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", binary, "./cmd/lucius") //nolint:gosec // It is the go tool.
	build.Dir = module
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build Lucius: %w\n%s", err, bytes.TrimSpace(output))
	}
	return nil
}

// protocols are the protocol files by name. No worker serves the steps of the last.
var protocols = map[string]string{
	"one.yaml": "protocol_id: one\nrequest_types: [bench.one]\nsteps:\n" + protocolStep(1, "job", "bench"),
	"three.yaml": "protocol_id: three\nrequest_types: [bench.three]\nsteps:\n" +
		protocolStep(1, "job", "bench") + protocolStep(2, "previous", "bench") + protocolStep(3, "previous", "bench"),
	"parked.yaml": "protocol_id: parked\nrequest_types: [bench.parked]\nsteps:\n" + protocolStep(1, "job", parked),
}

func protocolStep(n int, input, service string) string {
	return fmt.Sprintf("  - {step_id: step_%d, step_type: BENCH, service: %s, input: %s}\n", n, service, input)
}

// pullers is the number of claims that wait for work at the same time, and claimMax the
// most steps that one takes.
const pullers, claimMax = 4, 32

// startLucius returns what starts Lucius, on the embedded store or on PostgreSQL.
func startLucius(onPostgres bool) func(context.Context, *comparison, *tracker, func(error)) (system, error) {
	return func(ctx context.Context, c *comparison, ends *tracker, fail func(error)) (_ system, err error) {
		if !onPostgres {
			return newLucius(ctx, c, ends, fail, nil, nil)
		}
		url, drop, err := c.migrated(ctx)
		if err != nil {
			return nil, err
		}
		return newLucius(ctx, c, ends, fail, environment(url), drop)
	}
}

// environment returns the variables of a server on that database.
func environment(url string) []string {
	return []string{"LUCIUS_STORAGE_BACKEND=postgres", "LUCIUS_POSTGRES_URL=" + url}
}

// migrated creates a database with the schema of Lucius. drop removes it.
func (c *comparison) migrated(ctx context.Context) (url string, drop func(context.Context) error, err error) {
	if url, drop, err = c.postgres.CreateDatabase(ctx); err != nil {
		return "", nil, err
	}
	migrate := exec.CommandContext(ctx, c.lucius, "postgres", "migrate") //nolint:gosec // It was built just now.
	migrate.Env = append(os.Environ(), environment(url)...)
	if output, err := migrate.CombinedOutput(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("migrate: %w\n%s", err, bytes.TrimSpace(output)), drop(context.WithoutCancel(ctx)))
	}
	return url, drop, nil
}

// newLucius starts the server with these variables, and workers. drop, if it is not nil,
// removes its database when it is stopped.
func newLucius(ctx context.Context, c *comparison, ends *tracker, fail func(error), environment []string,
	drop func(context.Context) error,
) (_ system, err error) {
	dir, err := os.MkdirTemp(c.dir, "lucius-")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	// The transport keeps all connections: those of submitters, completions and claims.
	transport := &http.Transport{MaxIdleConnsPerHost: 2*c.load.inFlight + pullers, DisableCompression: true}
	s := &luciusSystem{
		client: &http.Client{Transport: transport, Timeout: time.Minute}, dir: dir, ends: ends, environment: environment, drop: drop,
	}
	claims, stopClaims := context.WithCancel(ctx)
	s.stopClaims = stopClaims
	if err := s.serve(ctx, c); err != nil {
		return nil, errors.Join(err, s.stop(ctx))
	}
	for range pullers {
		s.pulling.Go(func() {
			if err := s.pull(claims, ctx); err != nil {
				fail(err)
			}
		})
	}
	return s, nil
}

// serve starts the server and waits until it listens.
func (s *luciusSystem) serve(ctx context.Context, c *comparison) error {
	folder := filepath.Join(s.dir, "protocols")
	if err := os.Mkdir(folder, 0o750); err != nil {
		return err
	}
	for name, text := range protocols {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	server := exec.CommandContext(context.WithoutCancel(ctx), c.lucius, "serve", //nolint:gosec // It was built just now.
		"--listen-addr", "127.0.0.1:0", "--data-dir", filepath.Join(s.dir, "data"),
		"--protocols-dir", folder, "--log-level", "warn")
	server.Env = append(os.Environ(), s.environment...)
	server.Stderr = c.progress
	// An interrupt of the terminal is for this program, which stops the server.
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	s.process = server
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "lucius serves ")
	if err != nil || !ok {
		return errors.New("the server did not come up")
	}
	s.url = url
	return nil
}

// command is a command of the API.
type command struct {
	TenantID       string            `json:"tenant_id"`
	RequestType    string            `json:"request_type"`
	SchemaVersion  string            `json:"schema_version"`
	InputRef       map[string]string `json:"input_ref"`
	OutputRef      map[string]string `json:"output_ref"`
	Payload        any               `json:"payload"`
	CorrelationID  string            `json:"correlation_id"`
	IdempotencyKey string            `json:"idempotency_key"`
}

var (
	inputRef  = map[string]string{"uri": "bench://input"}
	outputRef = map[string]string{"uri": "bench://output"}
	resultRef = map[string]string{"uri": "bench://result"}
)

// newCommand returns a command of one of ten tenants, so that fairness between them is
// at work.
func newCommand(name, requestType string) command {
	return command{
		TenantID: "bench-" + name[len(name)-1:], RequestType: requestType, SchemaVersion: "1",
		InputRef: inputRef, OutputRef: outputRef, Payload: payload, CorrelationID: name, IdempotencyKey: name,
	}
}

func (s *luciusSystem) submit(ctx context.Context, name string, steps int) error {
	requestType := "bench.one"
	if steps == 3 {
		requestType = "bench.three"
	}
	return s.post(ctx, "/v1/commands", newCommand(name, requestType), nil)
}

func (s *luciusSystem) submitBatch(ctx context.Context, names []string) error {
	var request struct {
		Commands []command `json:"commands"`
	}
	for _, name := range names {
		request.Commands = append(request.Commands, newCommand(name, "bench."+parked))
	}
	var answer struct {
		Results []struct {
			Status int `json:"status"`
		} `json:"results"`
	}
	if err := s.post(ctx, "/v1/commands:batch", request, &answer); err != nil {
		return err
	}
	for i, result := range answer.Results {
		if result.Status != http.StatusAccepted {
			return fmt.Errorf("command %s of a batch was answered %d", names[i], result.Status)
		}
	}
	return nil
}

// workItem is the part of a claimed step that a worker reads.
type workItem struct {
	WorkID    string `json:"work_id"`
	Rev       int64  `json:"rev"`
	Directive struct {
		StepID        string `json:"stepId"`
		ProtocolID    string `json:"protocol_id"`
		CorrelationID string `json:"correlation_id"`
	} `json:"directive"`
}

// pull claims and starts steps until the context ends, and completes those of a claim
// together, in a separate goroutine, with the context finish.
func (s *luciusSystem) pull(ctx, finish context.Context) error {
	completing, finish := errgroup.WithContext(finish)
	for ctx.Err() == nil && finish.Err() == nil {
		var claimed struct {
			Items []workItem `json:"items"`
		}
		err := s.post(ctx, "/v1/work:claim", map[string]any{
			"owner": "compare", "services": []string{"bench"}, "max": claimMax, "wait_seconds": 20, "start": true,
			"request_id": s.requestID(),
		}, &claimed)
		if err != nil && ctx.Err() == nil {
			return errors.Join(err, completing.Wait())
		}
		if len(claimed.Items) > 0 {
			completing.Go(func() error { return s.complete(finish, claimed.Items) })
		}
	}
	return completing.Wait()
}

// complete reports the success of steps. The answer to the last one of a job ends it: it
// follows the commit.
func (s *luciusSystem) complete(ctx context.Context, items []workItem) error {
	completions := make([]map[string]any, len(items))
	for i := range items {
		completions[i] = map[string]any{
			"work_id": items[i].WorkID, "owner": "compare", "expected_rev": items[i].Rev, "request_id": s.requestID(),
			"result_ref": resultRef,
		}
	}
	var answer struct {
		Results []struct {
			Status int `json:"status"`
		} `json:"results"`
	}
	if err := s.post(ctx, "/v1/work:complete", map[string]any{"items": completions}, &answer); err != nil {
		return err
	}
	for i, result := range answer.Results {
		if result.Status != http.StatusOK {
			return fmt.Errorf("the completion of %s was answered %d", items[i].WorkID, result.Status)
		}
		if directive := &items[i].Directive; directive.ProtocolID == "one" || directive.StepID == "step_3" {
			s.ends.end(directive.CorrelationID)
		}
	}
	return nil
}

// requestID returns a fresh request id.
func (s *luciusSystem) requestID() string { return fmt.Sprintf("request-%d", s.requests.Add(1)) }

// post sends a JSON body and decodes the answer into the value, unless it is nil.
func (s *luciusSystem) post(ctx context.Context, path string, body, answer any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the body of %s: %w", path, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return err // It names the method and the URL.
	}
	defer response.Body.Close()
	// Read to the end, or the connection could not be kept.
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("%s: read the answer: %w", path, err)
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("%s: the server answered %d: %.300s", path, response.StatusCode, text)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

func (s *luciusSystem) stop(ctx context.Context) error {
	s.stopClaims()
	s.pulling.Wait()
	s.client.CloseIdleConnections()
	err := errors.Join(stopProcess(s.process, syscall.SIGTERM), os.RemoveAll(s.dir))
	if s.drop != nil {
		err = errors.Join(err, s.drop(ctx))
	}
	return err
}

// stopProcess sends the signal to the process and waits for its end. If the process does
// not end in time, it is killed.
func stopProcess(process *exec.Cmd, signal syscall.Signal) error {
	if process == nil {
		return nil
	}
	kill := time.AfterFunc(stopTimeout, func() { _ = process.Process.Kill() })
	defer kill.Stop()
	if err := process.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", process.Path, err)
	}
	if err := process.Wait(); err != nil {
		return fmt.Errorf("%s: %w", process.Path, err)
	}
	return nil
}
