package samplepipeline_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/samplepipeline"
)

// indexed returns an index of the demo's documents.
func indexed(t *testing.T) string {
	t.Helper()
	absolute, err := filepath.Abs(documentsDir)
	if err != nil {
		t.Fatal(err)
	}
	w := samplepipeline.Workspace{Documents: absolute, Work: t.TempDir()}
	for _, name := range documents(t) {
		ingest(t, w, name)
	}
	return w.IndexDir()
}

func TestSearchFindsWhatADocumentIsAbout(t *testing.T) {
	t.Parallel()
	index := indexed(t)
	for query, want := range map[string]string{
		"a lamp that ships see at night":            "lighthouse.txt",
		"bake a loaf with wild yeast":               "sourdough.txt",
		"a swarm of bees and its queen":             "bees.txt",
		"the moon and high water in the harbour":    "tides.txt",
		"a clock that finds the longitude":          "clocks.txt",
		"straighten a river bed and floods":         "rivers.txt",
		"letters of lead in the upper case":         "printing.txt",
		"who taxed salt":                            "salt.txt",
		"catalogue of books by author and title":    "library.html",
		"molten tin and window panes":               "glass.html",
		"a staff for the driver of the train":       "railway.html",
		"worms and fungi in the garden":             "soil.html",
		"barometer falls before the storm":          "weather.html",
		"copper cable across the atlantic telegram": "telegraph.html",
	} {
		hits, err := samplepipeline.Search(index, query, 3)
		if err != nil {
			t.Fatal(err)
		}
		if len(hits) != 3 || hits[0].Name != want {
			t.Errorf("%q finds %+v, want %s first", query, hits, want)
		}
		if hits[0].Score < hits[1].Score || hits[1].Score < hits[2].Score || hits[0].Score > 1 {
			t.Errorf("%q: the hits are in no order: %+v", query, hits)
		}
	}
}

func TestASnippetShowsWhatWasFound(t *testing.T) {
	t.Parallel()
	hits, err := samplepipeline.Search(indexed(t), "prisms of glass bend the light of a flame", 1)
	if err != nil {
		t.Fatal(err)
	}
	want := "… of glass prisms taller than a man. Each ring bends the light of a small flame …"
	if len(hits) != 1 || hits[0].Title != "The lighthouse keeper" || hits[0].Snippet != want {
		t.Errorf("%+v, want the snippet %q", hits, want)
	}
}

// putIndex writes an index file.
func putIndex(t *testing.T, dir, name string, doc any) {
	t.Helper()
	data, err := json.Marshal(doc)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestSearchInASmallIndex(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, body := range map[string]string{"b.txt": "red lamp", "a.txt": "red lamp", "c.txt": "green bottle"} {
		putIndex(t, dir, name+".json", samplepipeline.Embed(samplepipeline.Text{Name: name, Title: "red", Body: body}))
	}
	putIndex(t, dir, ".new-1", "a file that is being written")
	for _, test := range []struct {
		query string
		k     int
		want  []string
	}{
		{"red lamp", 10, []string{"a.txt", "b.txt", "c.txt"}}, // equal ones by name
		{"red lamp", 1, []string{"a.txt"}},
		{"bottle", 10, []string{"c.txt"}},
		{"", 10, nil},
		{"the", 10, nil},
		{"red", 0, nil},
		{"red", -1, nil},
	} {
		hits, err := samplepipeline.Search(dir, test.query, test.k)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, hit := range hits {
			got = append(got, hit.Name)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%q, %d (-want +got):\n%s", test.query, test.k, diff)
		}
	}
}

func TestSearchWithoutAnIndex(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "missing")} {
		if _, err := samplepipeline.Search(dir, "red", 1); !errors.Is(err, samplepipeline.ErrNoIndex) {
			t.Errorf("%s: error %v", dir, err)
		}
	}
}

func TestSearchInAFolderThatIsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	putIndex(t, dir, "a.json", "not a document")
	if _, err := samplepipeline.Search(dir, "red", 1); !errors.Is(err, samplepipeline.ErrPermanent) {
		t.Errorf("a file of another kind: error %v", err)
	}
	if _, err := samplepipeline.Search(filepath.Join(dir, "a.json"), "red", 1); err == nil {
		t.Error("a file instead of a folder: no error")
	}
}
