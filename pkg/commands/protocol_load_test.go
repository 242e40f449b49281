package commands_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// folder makes a file system of name, text pairs.
func protocolFolder(pairs ...string) fstest.MapFS {
	files := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		files[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return files
}

// load loads one file and returns its protocol.
func loadText(t *testing.T, text string) *commands.Protocol {
	t.Helper()
	registry := musttest.Make[fs.FS](t, commands.LoadProtocolsFS, protocolFolder("p.yaml", text))
	return registry.Protocols()[0]
}

// small is a protocol of one step, with more lines at its top and in its step.
func smallProtocol(top, step string) string {
	return "protocol_id: p\nrequest_types: [r]\n" + top + "\nsteps:\n  - step_id: one\n    step_type: ONE\n    service: svc\n" + step + "\n"
}

// unexported leaves out a protocol's unexported fields, and its digest and example, which have their own
// tests.
var unexported = cmp.Options{
	cmpopts.IgnoreUnexported(commands.Protocol{}, commands.ProtocolStep{}), cmpopts.IgnoreFields(commands.Protocol{}, "Digest", "PayloadExample"),
}

func TestTheExampleThatUsersCopy(t *testing.T) {
	t.Parallel()
	registry := musttest.Make(t, commands.LoadProtocols, "../../protocols")
	got, ok := registry.Lookup("doc.ingest")
	if !ok {
		t.Fatal("no protocol claims doc.ingest")
	}
	want := &commands.Protocol{
		ID: "doc_ingest_v1", Version: "1", RequestTypes: []string{"doc.ingest"}, SchemaVersions: []string{"1"},
		Steps: []commands.ProtocolStep{
			{ID: "extract", Type: "EXTRACT", Service: "extract", Input: statemachine.InputJob},
			{ID: "embed", Type: "EMBED", Service: "embed", Input: statemachine.InputPrevious},
			{ID: "index", Type: "INDEX", Service: "index", Input: statemachine.InputPrevious},
		},
		File: "doc_ingest.yaml",
	}
	if diff := cmp.Diff(want, got, unexported); diff != "" {
		t.Errorf("protocol (-want +got):\n%s", diff)
	}
}

func TestEveryKey(t *testing.T) {
	t.Parallel()
	got := loadText(t, `
protocol_id: doc_ingest_v1
version: 1.10
request_types: [doc.ingest, doc.reingest]
schema_versions: ["1", 2, 1.10]
mode: BURST
ack_timeout: 1s
lease: 2s
timeout: 3s
retry: {dispatch: [4s], ack: [5s, 6s], execution: [7s], max_attempts: 8}
priority: bulk
order: {key: /a/b, prefix: "x:", mode: newest, on_failure: block, on_running: cancel, max_waiting: 9, required: true}
steps:
  - {step_id: a, step_type: A, service: s}
  - step_id: b.B_-1
    step_type: B
    service: s
    input: previous
    payload: /b~1c/0
    payload_schema: {type: string}
    mode: DEFAULT
    ack_timeout: 250ms
    lease: 1h30m
    timeout: 24h
    retry:
      dispatch: []
      ack: [9s]
      max_attempts: 1
`)
	second := func(n int) time.Duration { return time.Duration(n) * time.Second }
	want := &commands.Protocol{
		ID: "doc_ingest_v1", Version: "1.10", RequestTypes: []string{"doc.ingest", "doc.reingest"},
		SchemaVersions: []string{"1", "2", "1.10"}, File: "p.yaml",
		Order: commands.ProtocolOrder{
			Key: "/a/b", Prefix: "x:", Mode: "newest", OnFailure: "block", CancelsRunning: true, MaxWaiting: 9, Required: true,
		},
		Class: statemachine.ClassBulk,
		Steps: []commands.ProtocolStep{
			{ID: "a", Type: "A", Service: "s", Input: "job", Mode: "BURST", Overrides: statemachine.Policy{
				AckTimeout: second(1), Lease: second(2), Timeout: second(3), Dispatch: []time.Duration{second(4)},
				Ack: []time.Duration{second(5), second(6)}, Execution: []time.Duration{second(7)}, MaxAttempts: 8,
			}},
			{ID: "b.B_-1", Type: "B", Service: "s", Input: "previous", PayloadPointer: "/b~1c/0", Mode: "DEFAULT", Overrides: statemachine.Policy{
				AckTimeout: 250 * time.Millisecond, Lease: 90 * time.Minute, Timeout: 24 * time.Hour, Dispatch: []time.Duration{},
				Ack: []time.Duration{second(9)}, Execution: []time.Duration{second(7)}, MaxAttempts: 1,
			}},
		},
	}
	if diff := cmp.Diff(want, got, unexported); diff != "" {
		t.Errorf("protocol (-want +got):\n%s", diff)
	}
}

func TestWhatIsNotSetStaysUnset(t *testing.T) {
	t.Parallel()
	got := loadText(t, smallProtocol("version: &none ~\nschema_versions:\norder: {key: ~, mode: }\nretry: {dispatch: }", "    lease: *none\n    timeout: null\n    retry:"))
	if diff := cmp.Diff(statemachine.Policy{}, got.Steps[0].Overrides); diff != "" || got.Steps[0].Mode != "" || got.Version != "" || got.SchemaVersions != nil ||
		got.Order != (commands.ProtocolOrder{}) {
		t.Errorf("something is set: %+v", got)
	}
}

func TestFilesOfAFolder(t *testing.T) {
	t.Parallel()
	other := strings.NewReplacer("protocol_id: p", "protocol_id: a", "[r]", "[r2]").Replace(smallProtocol("", ""))
	third := `{"protocol_id": "j", "request_types": ["\ud83d\ude00"],` + "\n\t" + `"steps": [{"step_id": "s", "step_type": "S", "service": "s"}]}`
	files := protocolFolder("p.yaml", smallProtocol("", ""), "b.yml", other, "c.json", third,
		".hidden.yaml", "nonsense", "README.md", "nonsense", "p.yaml.bak", "nonsense", "sub/x.yaml", "nonsense", "dir.yaml/x", "nonsense")
	registry := musttest.Make[fs.FS](t, commands.LoadProtocolsFS, files)
	var ids []string
	for _, p := range registry.Protocols() {
		ids = append(ids, p.ID+" "+p.File)
	}
	if diff := cmp.Diff([]string{"a b.yml", "j c.json", "p p.yaml"}, ids); diff != "" {
		t.Errorf("protocols (-want +got):\n%s", diff)
	}
	for requestType, want := range map[string]string{"r": "p", "r2": "a", "😀": "j"} {
		if got, ok := registry.Lookup(requestType); !ok || got.ID != want {
			t.Errorf("Lookup(%s) = %v, %t, want %s", requestType, got, ok, want)
		}
	}
	for _, requestType := range []string{"", "R", "r ", "x"} {
		if got, ok := registry.Lookup(requestType); ok {
			t.Errorf("Lookup(%q) = %s, want none", requestType, got.ID)
		}
	}
}

func TestAFolderWithoutProtocols(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := commands.LoadProtocols(dir); !errors.Is(err, commands.ErrNoProtocols) || !strings.Contains(err.Error(), dir) {
		t.Errorf("an empty folder: %v, want %v with the folder's name", err, commands.ErrNoProtocols)
	}
	missing := filepath.Join(dir, "missing")
	if _, err := commands.LoadProtocols(missing); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("a missing folder: %v, want %v with the folder's name", err, fs.ErrNotExist)
	}
	if _, err := commands.LoadProtocolsFS(fstest.MapFS{}); !errors.Is(err, commands.ErrNoProtocols) {
		t.Errorf("an empty file system: %v, want %v", err, commands.ErrNoProtocols)
	}
}

// brokenFS fails as disks do.
type brokenFS struct {
	fstest.MapFS
	list error
	open error
}

func (b brokenFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if b.list != nil {
		return nil, b.list
	}
	return b.MapFS.ReadDir(name)
}

func (b brokenFS) Open(name string) (fs.File, error) {
	if b.open != nil && name != "." {
		return nil, b.open
	}
	return b.MapFS.Open(name)
}

func TestFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	fault := errors.New("the disk is on fire")
	if _, err := commands.LoadProtocolsFS(brokenFS{MapFS: fstest.MapFS{}, list: fault}); !errors.Is(err, fault) {
		t.Errorf("folder: %v, want %v", err, fault)
	}
	_, err := commands.LoadProtocolsFS(brokenFS{MapFS: protocolFolder("p.yaml", smallProtocol("", "")), open: fault})
	if file, ok := errors.AsType[*strictyaml.Error](err); !ok || file.File != "p.yaml" || !strings.Contains(file.Message, fault.Error()) {
		t.Errorf("file: %v, want an Error of p.yaml with %v", err, fault)
	}
	_, err = commands.LoadProtocolsFS(protocolFolder("p.yaml", smallProtocol("# "+strings.Repeat("x", 1<<20), "")))
	if err == nil || err.Error() != "p.yaml: is larger than 1048576 bytes" {
		t.Errorf("a large file: %v", err)
	}
	pipe := fstest.MapFS{"p.yaml": {Data: []byte(smallProtocol("", "")), Mode: fs.ModeNamedPipe}}
	if _, err = commands.LoadProtocolsFS(pipe); err == nil || err.Error() != "p.yaml: is not a regular file (p---------): a file or a link to one is expected" {
		t.Errorf("a named pipe: %v", err)
	}
	dir := t.TempDir()
	musttest.NoError(t, os.Symlink(dir, filepath.Join(dir, "loop.yaml")))
	if _, err := commands.LoadProtocols(dir); err == nil || !strings.Contains(err.Error(), "loop.yaml") {
		t.Errorf("a link to a folder: %v, want an error that names it", err)
	}
}

// Mounted config maps use links.
func TestLinksAreFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	musttest.NoError(t, os.Mkdir(filepath.Join(dir, "..data"), 0o755))
	musttest.WriteFile(t, filepath.Join(dir, "..data", "p.yaml"), smallProtocol("", ""))
	musttest.NoError(t, os.Symlink(filepath.Join("..data", "p.yaml"), filepath.Join(dir, "p.yaml")))
	registry := musttest.Make(t, commands.LoadProtocols, dir)
	if _, ok := registry.Lookup("r"); !ok {
		t.Error("the protocol behind the link is not there")
	}
}

func TestHolder(t *testing.T) {
	t.Parallel()
	first := musttest.Make[fs.FS](t, commands.LoadProtocolsFS, protocolFolder("p.yaml", smallProtocol("", "")))
	second := musttest.Make[fs.FS](t, commands.LoadProtocolsFS, protocolFolder("p.yaml", smallProtocol("version: 2", "")))
	holder := commands.NewProtocolHolder(first)
	if holder.Load() != first {
		t.Error("the holder does not hold the first registry")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			if p, ok := holder.Load().Lookup("r"); !ok || p.Version != "" && p.Version != "2" {
				t.Errorf("Lookup = %v, %t", p, ok)
			}
		}
	}()
	if old := holder.Swap(second); old != first || holder.Load() != second {
		t.Error("Replace does not put the second registry into the place of the first")
	}
	<-done
}

func TestPolicyTakesTheGlobalValueWhereTheStepSetsNone(t *testing.T) {
	t.Parallel()
	global := statemachine.Policy{
		AckTimeout: 30 * time.Second, Lease: 15 * time.Minute, Dispatch: []time.Duration{1}, Ack: []time.Duration{2},
		Execution: []time.Duration{3}, MaxAttempts: 10,
	}
	none := loadText(t, smallProtocol("", ""))
	if diff := cmp.Diff(global, none.Steps[0].Policy(global)); diff != "" {
		t.Errorf("nothing set (-want +got):\n%s", diff)
	}
	some := loadText(t, smallProtocol("lease: 1m", "    timeout: 2h\n    retry: {ack: [], max_attempts: 3}"))
	want := global
	want.Lease, want.Timeout, want.Ack, want.MaxAttempts = time.Minute, 2*time.Hour, []time.Duration{}, 3
	if diff := cmp.Diff(want, some.Steps[0].Policy(global)); diff != "" {
		t.Errorf("some set (-want +got):\n%s", diff)
	}
}

func TestAStepSwitchesItsTimeoutOff(t *testing.T) {
	t.Parallel()
	global := statemachine.Policy{Timeout: time.Hour}
	for text, want := range map[string]time.Duration{"": time.Hour, "    timeout: off": 0, "    timeout: 0s": 0, "    timeout: 2h": 2 * time.Hour} {
		for _, file := range []string{"", "timeout: 1h"} {
			if got := loadText(t, smallProtocol(file, text)).Steps[0].Policy(global).Timeout; got != want {
				t.Errorf("file %q, step %q: the timeout is %s, want %s", file, text, got, want)
			}
		}
	}
	if got := loadText(t, smallProtocol("timeout: off", "")).Steps[0].Policy(global).Timeout; got != 0 {
		t.Errorf("file with timeout off: %s", got)
	}
}

// A payload with nested values of its own kind is finite, so its schema may refer to itself
// for parts of the value.
func TestASchemaMayReferToItselfForAnotherValue(t *testing.T) {
	t.Parallel()
	p := loadText(t, smallProtocol("", "    payload_schema: {allOf: [{$ref: '#/$defs/tree'}], anyOf: [{$ref: '#/$defs/tree'}], "+
		"$defs: {tree: {type: object, additionalProperties: {$ref: '#/$defs/tree'}, items: {$ref: '#'}}}}"))
	for payload, want := range map[string]int{`{"a": {"b": {}}}`: 0, `{"a": {"b": 1}}`: 2} {
		if got := p.ValidatePayload(parsePayload(t, payload)); len(got) != want {
			t.Errorf("%s has the violations %v, want %d", payload, got, want)
		}
	}
}

func TestCheckSchemaVersion(t *testing.T) {
	t.Parallel()
	if got := loadText(t, smallProtocol("", "")).CheckSchemaVersion("anything"); got != nil {
		t.Errorf("a protocol that names none refuses: %v", got)
	}
	two := loadText(t, smallProtocol(`schema_versions: ["1", "2"]`, ""))
	for _, version := range []string{"1", "2"} {
		if got := two.CheckSchemaVersion(version); got != nil {
			t.Errorf("%s is refused: %v", version, got)
		}
	}
	got := two.CheckSchemaVersion("3")
	if len(got) != 1 || got[0].Pointer != "/schema_version" || got[0].Message != `must be "1" or "2" for the protocol p` {
		t.Errorf("3: %+v", got)
	}
}

// A file may only name values that a command may carry.
func TestLimitsAreThoseOfTheEnvelope(t *testing.T) {
	t.Parallel()
	list := func(name string, size int) string {
		return name + ": ['" + strings.Repeat("x", size) + "']"
	}
	for _, more := range []int{0, 1} {
		requestTypes := strings.Replace(smallProtocol("", ""), "request_types: [r]", list("request_types", commands.MaxRequestType+more), 1)
		if _, err := commands.LoadProtocolsFS(protocolFolder("p.yaml", requestTypes)); (err != nil) != (more > 0) {
			t.Errorf("a request type of the limit and %d more: %v", more, err)
		}
		versions := smallProtocol(list("schema_versions", commands.MaxSchemaVersion+more), "")
		if _, err := commands.LoadProtocolsFS(protocolFolder("p.yaml", versions)); (err != nil) != (more > 0) {
			t.Errorf("a schema version of the limit and %d more: %v", more, err)
		}
	}
}

func ExampleLoadProtocols() {
	registry, err := commands.LoadProtocols("../../protocols")
	if err != nil {
		panic(err)
	}
	p, _ := registry.Lookup("doc.ingest")
	for _, step := range p.Steps {
		fmt.Println(step.ID, "by", step.Service, "from", step.Input)
	}
	// Output:
	// extract by extract from job
	// embed by embed from previous
	// index by index from previous
}
