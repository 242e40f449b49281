package samplepipeline_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/samplepipeline"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// documentsDir holds the documents of the demo.
const documentsDir = "../demo/documents"

// documents are their names.
func documents(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, pattern := range []string{"*.txt", "*.html"} {
		found, err := filepath.Glob(filepath.Join(documentsDir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			names = append(names, filepath.Base(path))
		}
	}
	return names
}

// golden is the expected result of a document.
type golden struct {
	Text   samplepipeline.Text   `json:"text"`
	Result samplepipeline.Result `json:"result"`
	// First are the first numbers of the first chunk's vector.
	First []float32 `json:"vector_begins"`
}

// Run with -update after an intended change, and read the difference.
func TestGoldenFiles(t *testing.T) {
	t.Parallel()
	for _, name := range documents(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(filepath.Join(documentsDir, name))
			if err != nil {
				t.Fatal(err)
			}
			var got golden
			if got.Text, err = samplepipeline.Extract(name, data, "en"); err != nil {
				t.Fatal(err)
			}
			embedded := samplepipeline.Embed(got.Text)
			got.Result, got.First = samplepipeline.Summarize(&embedded), embedded.Chunks[0].Vector[:8]
			compareGolden(t, filepath.Join("testdata", "golden", name+".json"), got)
		})
	}
}

func compareGolden(t *testing.T, path string, got golden) {
	t.Helper()
	if *update {
		text, err := json.MarshalIndent(got, "", "  ")
		if err == nil {
			err = os.WriteFile(path, append(text, '\n'), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var want golden
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
