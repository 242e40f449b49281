package samplepipeline_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/samplepipeline"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// directive returns the directive that a service gets for a document.
func directive(w samplepipeline.Workspace, document string) *lucius.Task {
	return &lucius.Task{Directive: lucius.Directive{
		InputRef: samplepipeline.FileRef(filepath.Join(w.Documents, document)), OutputRef: samplepipeline.FileRef(w.OutputPath(document)),
		Payload: json.RawMessage(`{"language":"en"}`),
	}}
}

// ingest executes all three steps for a document.
func ingest(t *testing.T, w samplepipeline.Workspace, document string) (final lucius.Reference) {
	t.Helper()
	d := directive(w, document)
	for _, name := range []string{"extract", "embed", "index"} {
		result, err := w.Services()[name](t.Context(), d)
		if err != nil {
			t.Fatalf("%s of %s: %v", name, document, err)
		}
		d.InputRef = result.(lucius.Reference)
	}
	return d.InputRef
}

// workspace returns a workspace with these documents.
func workspace(t *testing.T, documents map[string]string) samplepipeline.Workspace {
	t.Helper()
	w := samplepipeline.Workspace{Documents: t.TempDir(), Work: filepath.Join(t.TempDir(), "not", "there", "yet")}
	for name, text := range documents {
		path := filepath.Join(w.Documents, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// tree returns the content of a folder.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		files[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestTheServicesMakeAnIndexAndAResult(t *testing.T) {
	t.Parallel()
	w := workspace(t, map[string]string{"bees.txt": "Bees\n\nBees dance."})
	final := ingest(t, w, "bees.txt")
	if diff := cmp.Diff(string(samplepipeline.FileRef(w.OutputPath("bees.txt"))), string(final)); diff != "" {
		t.Errorf("final reference (-want +got):\n%s", diff)
	}
	files := tree(t, w.Work)
	want := []string{"index/bees.txt.json", "output/bees.txt.json", "text/bees.txt.json", "vectors/bees.txt.json"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(files))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	wantResult := `{"name":"bees.txt","title":"Bees","language":"en","words":3,"chunks":1,"top_terms":["bee","dance"]}` + "\n"
	if diff := cmp.Diff(wantResult, files["output/bees.txt.json"]); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if files["index/bees.txt.json"] != files["vectors/bees.txt.json"] {
		t.Error("the index does not hold what was embedded")
	}
}

// Delivery is at least once.
func TestDoingItAgainWritesTheSameBytes(t *testing.T) {
	t.Parallel()
	w := workspace(t, map[string]string{"bees.txt": "Bees\n\nBees dance.", "glass.html": "<p>Sand melts.</p>"})
	ingest(t, w, "bees.txt")
	ingest(t, w, "glass.html")
	before := tree(t, w.Work)
	ingest(t, w, "bees.txt")
	if diff := cmp.Diff(before, tree(t, w.Work)); diff != "" {
		t.Errorf("files (-first +second):\n%s", diff)
	}
}

func TestDocumentsOfOneNameStayApart(t *testing.T) {
	t.Parallel()
	w := workspace(t, map[string]string{
		"a.txt": "one", "a.html": "two", "sub/a.txt": "three", "sub%2Fa.txt": "four", "a b#?ü.txt": "five",
	})
	for _, name := range []string{"a.txt", "a.html", "sub/a.txt", "sub%2Fa.txt", "a b#?ü.txt"} {
		ingest(t, w, name)
	}
	titles := make(map[string]bool)
	for name, text := range tree(t, filepath.Join(w.Work, "output")) {
		var result samplepipeline.Result
		if err := json.Unmarshal([]byte(text), &result); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		titles[result.Title] = true
	}
	if len(titles) != 5 {
		t.Errorf("results of %v, want all five", slices.Collect(maps.Keys(titles)))
	}
}

// A directive comes from outside: no path in it leads to other files.
func TestFilesOutsideOfTheWorkspaceAreRefused(t *testing.T) {
	t.Parallel()
	w := workspace(t, map[string]string{"a.txt": "inside"})
	outside := filepath.Join(t.TempDir(), "secret.txt")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link.txt": outside, "linked": filepath.Dir(outside)} {
		if err := os.Symlink(to, filepath.Join(w.Documents, link)); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return "file://" + filepath.ToSlash(w.Documents) + name }
	for name, uri := range map[string]string{
		"another folder":          "file://" + filepath.ToSlash(outside),
		"the folder itself":       in(""),
		"a way out":               in("/../secret.txt"),
		"a hidden way out":        in("/%2e%2e/secret.txt"),
		"a folder with its name":  in("-2/secret.txt"),
		"a symbolic link":         in("/link.txt"),
		"a link to a folder":      in("/linked/secret.txt"),
		"a folder inside":         in("/linked"),
		"no such file":            in("/b.txt"),
		"another host":            "file://example.com" + filepath.ToSlash(w.Documents) + "/a.txt",
		"another scheme":          "https://example.com/a.txt",
		"a relative path":         "a.txt",
		"a relative URI":          "file:a.txt",
		"a query":                 in("/a.txt?x"),
		"a fragment":              in("/a.txt#x"),
		"a null byte":             in("/a.txt%00"),
		"an escape that is none":  in("/%zz"),
		"nothing":                 "",
		"the root":                "file:///",
		"a file of the workspace": "file://" + filepath.ToSlash(w.Work) + "/text/a.txt.json",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := directive(w, "a.txt")
			d.InputRef = lucius.URI(uri)
			result, err := w.Services()["extract"](t.Context(), d)
			if err == nil || !strings.HasPrefix(err.Error(), "input_ref: ") || result.(lucius.Reference) != nil {
				t.Errorf("%s: %s, error %v", uri, result, err)
			}
			if name != "a link to a folder" && !errors.Is(err, samplepipeline.ErrPermanent) {
				t.Errorf("%s: error %v, want a permanent one", uri, err)
			}
		})
	}
}

func TestLocalhostIsThisHost(t *testing.T) {
	t.Parallel()
	w := workspace(t, map[string]string{"a.txt": "inside"})
	d := directive(w, "a.txt")
	d.InputRef = lucius.Reference(strings.Replace(string(d.InputRef), "file://", "file://localhost", 1))
	if _, err := w.Services()["extract"](t.Context(), d); err != nil {
		t.Error(err)
	}
}

// Errors that no retry can fix are marked permanent.
func TestInvalidDirectives(t *testing.T) {
	t.Parallel()
	w := workspace(t, map[string]string{"a.txt": "inside", "a.pdf": "%PDF"})
	ingest(t, w, "a.txt")
	if err := os.WriteFile(filepath.Join(w.Work, "broken.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := samplepipeline.FileRef(filepath.Join(w.Work, "text", "a.txt.json"))
	vectors := samplepipeline.FileRef(filepath.Join(w.Work, "vectors", "a.txt.json"))
	broken := samplepipeline.FileRef(filepath.Join(w.Work, "broken.json"))
	outside := samplepipeline.FileRef(filepath.Join(w.Documents, "a.txt"))
	for name, test := range map[string]struct {
		service string
		change  func(*lucius.Task)
		want    string
	}{
		"extract: a reference of another type": {"extract", func(d *lucius.Task) { d.InputRef = []byte(`"x"`) }, "input_ref"},
		"extract: no reference":                {"extract", func(d *lucius.Task) { d.InputRef = []byte("null") }, "input_ref"},
		"extract: a payload that is no object": {"extract", func(d *lucius.Task) { d.Payload = []byte("[]") }, "payload"},
		"extract: no payload":                  {"extract", func(d *lucius.Task) { d.Payload = nil }, "payload"},
		"extract: another kind of document": {
			"extract", func(d *lucius.Task) { d.InputRef = samplepipeline.FileRef(filepath.Join(w.Documents, "a.pdf")) }, "cannot be done",
		},
		"embed: outside":                {"embed", func(d *lucius.Task) { d.InputRef = outside }, "input_ref"},
		"embed: not what extract wrote": {"embed", func(d *lucius.Task) { d.InputRef = broken }, "input_ref"},
		"embed: nothing there": {
			"embed", func(d *lucius.Task) { d.InputRef = samplepipeline.FileRef(filepath.Join(w.Work, "text", "b.txt.json")) }, "input_ref",
		},
		"index: input outside":        {"index", func(d *lucius.Task) { d.InputRef = outside }, "input_ref"},
		"index: not what embed wrote": {"index", func(d *lucius.Task) { d.InputRef = broken }, "input_ref"},
		"index: output outside": {
			"index", func(d *lucius.Task) { d.InputRef, d.OutputRef = vectors, outside }, "output_ref",
		},
		"index: no output": {"index", func(d *lucius.Task) { d.InputRef, d.OutputRef = text, nil }, "output_ref"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := directive(w, "a.txt")
			test.change(d)
			_, err := w.Services()[test.service](t.Context(), d)
			if !errors.Is(err, samplepipeline.ErrPermanent) || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("error %v, want a permanent one about %s", err, test.want)
			}
		})
	}
}

func TestADocumentMayBeTooLarge(t *testing.T) {
	t.Parallel()
	w := workspace(t, map[string]string{"a.txt": "x"})
	if err := os.Truncate(filepath.Join(w.Documents, "a.txt"), 16<<20+1); err != nil {
		t.Fatal(err)
	}
	_, err := w.Services()["extract"](t.Context(), directive(w, "a.txt"))
	if !errors.Is(err, samplepipeline.ErrPermanent) || !strings.Contains(err.Error(), "16777216 bytes") {
		t.Errorf("error %v", err)
	}
}

// A disk may recover, so a retry may succeed.
func TestFileErrorsAreNotPermanent(t *testing.T) {
	t.Parallel()
	inTheWay := func(t *testing.T, path string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, spoil := range map[string]func(t *testing.T, w samplepipeline.Workspace){
		"no folder of documents": func(t *testing.T, w samplepipeline.Workspace) {
			if err := os.RemoveAll(w.Documents); err != nil {
				t.Fatal(err)
			}
		},
		"a file instead of the work folder": func(t *testing.T, w samplepipeline.Workspace) { inTheWay(t, w.Work) },
		"a file instead of a folder in it":  func(t *testing.T, w samplepipeline.Workspace) { inTheWay(t, filepath.Join(w.Work, "text")) },
		"a folder at the path of the text": func(t *testing.T, w samplepipeline.Workspace) {
			inTheWay(t, filepath.Join(w.Work, "text", "a.txt.json", "x"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := workspace(t, map[string]string{"a.txt": "text"})
			spoil(t, w)
			_, err := w.Services()["extract"](t.Context(), directive(w, "a.txt"))
			if err == nil || errors.Is(err, samplepipeline.ErrPermanent) {
				t.Errorf("error %v, want one that may go away", err)
			}
			if _, err := os.Stat(w.Work); err != nil {
				return
			}
			for file := range tree(t, filepath.Dir(w.Work)) {
				if strings.Contains(file, ".new-") {
					t.Errorf("%s was not removed", file)
				}
			}
		})
	}
}
