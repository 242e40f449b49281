package demo_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/demo"
	"github.com/lucius-project/lucius/internal/samplepipeline"
)

// stage is a demo's folders, with two documents.
func stage(t *testing.T, baseURL string) (demo.Options, *bytes.Buffer) {
	t.Helper()
	options := demo.Options{BaseURL: baseURL, DocumentsDir: t.TempDir(), WorkDir: filepath.Join(t.TempDir(), "work")}
	put(t, options, "lighthouse.txt", "The lighthouse\n\nA lamp that ships see at night.")
	put(t, options, "bread.html", "<title>Bread</title><p>A loaf of flour and water.")
	var out bytes.Buffer
	options.Out = &out
	return options, &out
}

// put writes a document.
func put(t *testing.T, options demo.Options, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(options.DocumentsDir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestADemoIngestsItsDocuments(t *testing.T) {
	t.Parallel()
	_, baseURL := serve(t)
	options, out := stage(t, baseURL)
	put(t, options, "README.md", "not a document")
	if err := demo.Run(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"lighthouse.txt   SUCCEEDED\n", "bread.html       SUCCEEDED\n", "2 of 2 documents ingested",
		"  outputs  " + filepath.Join(options.WorkDir, "output"), "  index    " + filepath.Join(options.WorkDir, "index"),
		baseURL + "/v1/jobs/job-0  bread.html", baseURL + "/v1/jobs/job-1  lighthouse.txt",
		"search: \"a lamp that ships see at night from the sea\"\n  1. ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	_, hits, _ := strings.Cut(out.String(), "search:")
	if first := strings.Split(hits, "\n")[1]; !strings.HasSuffix(first, "The lighthouse (lighthouse.txt)") {
		t.Errorf("the first hit is %q", first)
	}
	for _, name := range []string{"lighthouse.txt.json", "bread.html.json"} {
		if _, err := os.Stat(filepath.Join(options.WorkDir, "output", name)); err != nil {
			t.Error(err)
		}
	}
}

// The same documents make the same commands, which have been accepted already.
func TestASecondRunRepeatsNoWork(t *testing.T) {
	t.Parallel()
	server, baseURL := serve(t)
	options, out := stage(t, baseURL)
	for range 2 {
		out.Reset()
		if err := demo.Run(t.Context(), options); err != nil {
			t.Fatal(err)
		}
	}
	if len(server.jobs) != 2 {
		t.Errorf("%d jobs for 2 documents", len(server.jobs))
	}
	if !strings.Contains(out.String(), "SUCCEEDED (its command was accepted before)") {
		t.Errorf("it does not say what it found:\n%s", out)
	}
}

func TestADocumentThatChangedIsANewJob(t *testing.T) {
	t.Parallel()
	server, baseURL := serve(t)
	options, out := stage(t, baseURL)
	if err := demo.Run(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	server.end()
	put(t, options, "bread.html", "<title>Rye bread</title><p>A loaf of rye.")
	options.Query = "rye"
	if err := demo.Run(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	if len(server.jobs) != 3 || !strings.Contains(out.String(), "Rye bread (bread.html)") {
		t.Errorf("%d jobs:\n%s", len(server.jobs), out)
	}
}

// An interrupted run leaves its jobs as they are; the next one continues
// with them.
func TestAnInterruptedRunIsContinued(t *testing.T) {
	t.Parallel()
	server, baseURL := serve(t)
	options, _ := stage(t, baseURL)
	ctx, cancel := context.WithCancel(t.Context())
	server.spoil = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, ":complete") {
			return false
		}
		cancel()
		http.Error(w, "", http.StatusConflict) // the report comes too late
		return true
	}
	if err := demo.Run(ctx, options); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "run it again") {
		t.Fatalf("error %v", err)
	}
	server.spoil = nil
	server.end()
	server.release()
	if err := demo.Run(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	if len(server.jobs) != 2 {
		t.Errorf("%d jobs for 2 documents", len(server.jobs))
	}
}

// The leases of a killed run have to end first; the next run says for what it waits.
func TestARunSaysThatItWaitsForAKilledOne(t *testing.T) {
	t.Parallel()
	server, baseURL := serve(t)
	options, out := stage(t, baseURL)
	ctx, kill := context.WithCancel(t.Context())
	server.spoil = func(w http.ResponseWriter, r *http.Request) bool {
		lost := strings.HasSuffix(r.URL.Path, ":complete") || strings.HasSuffix(r.URL.Path, ":fail")
		if lost {
			kill()
			http.Error(w, "", http.StatusConflict)
		}
		return lost
	}
	if err := demo.Run(ctx, options); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	if strings.Contains(out.String(), "waits until") {
		t.Errorf("it waits for its own workers:\n%s", out)
	}
	server.spoil = nil
	server.end()
	out.Reset()
	held := regexp.MustCompile(`(?m)^\S+ +extract: waits until 03:04:06 for the worker of a run that was killed$`)
	backoff := regexp.MustCompile(`(?m)^\S+ +extract: the next attempt starts at 03:04:06$`)
	expire, release := sync.OnceFunc(server.expire), sync.OnceFunc(server.release) // Each write repeats the text so far.
	options.Out = &listener{out: out, hear: func(text string) {
		switch {
		case backoff.MatchString(text):
			release()
		case held.MatchString(text):
			expire()
		}
	}}
	if err := demo.Run(t.Context(), options); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
}

// listener hears what has been written after each write.
type listener struct {
	out  *bytes.Buffer
	hear func(string)
}

func (l *listener) Write(p []byte) (int, error) {
	n, err := l.out.Write(p)
	l.hear(l.out.String())
	return n, err
}

// A user's changes to the files survive.
func TestUnpackKeepsTheFilesThatAreThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		if err := demo.Unpack(dir); err != nil {
			t.Fatal(err)
		}
	}
	bees := filepath.Join(dir, "documents", "bees.txt")
	if err := os.WriteFile(bees, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "documents", "salt.txt")); err != nil {
		t.Fatal(err)
	}
	if err := demo.Unpack(dir); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(bees); err != nil || string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}
	for _, name := range []string{"documents/salt.txt", "protocols/doc_ingest.yaml"} {
		got, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		want, wantErr := os.ReadFile(filepath.FromSlash(name))
		if err != nil || wantErr != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v, %v", name, err, wantErr)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "documents", "README.md")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the clone's README: %v", err)
	}
	if err := demo.Unpack(bees); err == nil {
		t.Error("a file is taken for a folder")
	}
}

func TestADocumentThatFailsIsNamed(t *testing.T) {
	t.Parallel()
	_, baseURL := serve(t)
	options, out := stage(t, baseURL)
	put(t, options, "empty.txt", " \n")
	err := demo.Run(t.Context(), options)
	if !errors.Is(err, demo.ErrNotIngested) ||
		!strings.Contains(err.Error(), `empty.txt is FAILED_FINAL: cannot_be_done cannot be done: "empty.txt" holds no text (job job-1)`) {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(out.String(), "2 of 3 documents ingested") {
		t.Errorf("it does not say what went well:\n%s", out)
	}
}

// On a terminal, the goroutine that draws reads what the polling goroutine writes.
func TestBarsOnATerminal(t *testing.T) {
	t.Parallel()
	_, baseURL := serve(t)
	options, out := stage(t, baseURL)
	put(t, options, "empty.txt", " \n")
	options.Terminal, options.Pace = true, 150*time.Millisecond
	if err := demo.Run(t.Context(), options); !errors.Is(err, demo.ErrNotIngested) {
		t.Fatal(err)
	}
	for _, want := range []string{"lighthouse.txt", "SUCCEEDED", "FAILED_FINAL"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

// If bars would not be visible, lines are written.
func TestATerminalWithoutRoomGetsLines(t *testing.T) {
	t.Parallel()
	_, baseURL := serve(t)
	options, _ := stage(t, baseURL)
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	options.Terminal, options.Out = true, file
	if err := errors.Join(demo.Run(t.Context(), options), file.Close()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil || !strings.Contains(string(text), "lighthouse.txt   SUCCEEDED\n") {
		t.Errorf("%v:\n%s", err, text)
	}
}

// A server that restarts will soon answer again.
func TestASilentServerIsForgivenForAWhile(t *testing.T) {
	t.Parallel()
	server, baseURL := serve(t)
	options, _ := stage(t, baseURL)
	silent := 0
	server.spoil = func(w http.ResponseWriter, r *http.Request) bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		if r.Method != http.MethodGet || silent == 3 {
			return false
		}
		silent++
		http.Error(w, "", http.StatusServiceUnavailable)
		return true
	}
	if err := demo.Run(t.Context(), options); err != nil || silent != 3 {
		t.Errorf("error %v after %d answers", err, silent)
	}
}

func TestARefusalOfTheServerIsAnError(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		path, want string
		status     int
	}{
		"submit": {"/v1/commands", "submit bread.html: submit: the server answered 422: no such protocol", http.StatusUnprocessableEntity},
		"claim":  {"/v1/work:claim", "the server answered 403", http.StatusForbidden},
		"look":   {"/v1/jobs/job-0", "look at bread.html: job job-0: the server answered 404: no such protocol", http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, baseURL := serve(t)
			server.spoil = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != test.path {
					return false
				}
				http.Error(w, "no such protocol", test.status)
				return true
			}
			options, _ := stage(t, baseURL)
			options.Patience = time.Millisecond
			if err := demo.Run(t.Context(), options); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}

func TestAnUnreachableServer(t *testing.T) {
	t.Parallel()
	options, _ := stage(t, "http://127.0.0.1:1")
	options.Patience = time.Millisecond
	if err := demo.Run(t.Context(), options); err == nil || !strings.HasPrefix(err.Error(), "submit bread.html: ") {
		t.Errorf("error %v", err)
	}
}

func TestFoldersOfDocumentsThatMakeNoDemo(t *testing.T) {
	t.Parallel()
	_, baseURL := serve(t)
	options, _ := stage(t, baseURL)
	options.DocumentsDir = t.TempDir()
	if err := demo.Run(t.Context(), options); !errors.Is(err, demo.ErrNoDocuments) {
		t.Errorf("an empty one: error %v", err)
	}
	options.DocumentsDir = filepath.Join(options.DocumentsDir, "missing")
	if err := demo.Run(t.Context(), options); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing one: error %v", err)
	}
	options.DocumentsDir = t.TempDir()
	if err := os.Mkdir(filepath.Join(options.DocumentsDir, "a.txt"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := demo.Run(t.Context(), options); err == nil || !strings.HasPrefix(err.Error(), "submit a.txt: ") {
		t.Errorf("a folder instead of a document: error %v", err)
	}
}

// The index may have been deleted since the jobs ended.
func TestAnIndexThatIsGone(t *testing.T) {
	t.Parallel()
	_, baseURL := serve(t)
	options, _ := stage(t, baseURL)
	if err := demo.Run(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(options.WorkDir); err != nil {
		t.Fatal(err)
	}
	if err := demo.Run(t.Context(), options); !errors.Is(err, samplepipeline.ErrNoIndex) {
		t.Errorf("error %v", err)
	}
}

func TestInvalidOptionsAreNamed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*demo.Options){
		"BaseURL":      func(o *demo.Options) { o.BaseURL = "localhost" },
		"DocumentsDir": func(o *demo.Options) { o.DocumentsDir = "" },
		"WorkDir":      func(o *demo.Options) { o.WorkDir = "" },
		"Out":          func(o *demo.Options) { o.Out = nil },
		"Pace":         func(o *demo.Options) { o.Pace = -1 },
		"Patience":     func(o *demo.Options) { o.Patience = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, _ := stage(t, "http://127.0.0.1:1")
			change(&options)
			if err := demo.Run(t.Context(), options); err == nil || !strings.HasPrefix(err.Error(), "demo: "+name+" is ") {
				t.Errorf("error %v does not name %s", err, name)
			}
		})
	}
}
