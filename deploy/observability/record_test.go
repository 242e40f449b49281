package observability

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// record has the server's own tests bring about the situations, and returns what they
// have recorded, by name.
func record(t *testing.T) map[string]history {
	t.Helper()
	dir := t.TempDir()
	record := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-tags", "integration", "-count=1", "-run", "^TestSituation",
		"-artifacts", "-outputdir", dir, "./cmd/lucius")
	record.Dir = "../.."
	record.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := record.CombinedOutput(); err != nil {
		t.Fatalf("record the situations: %v\n%s", err, output)
	}
	situations := map[string]history{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		name, ok := strings.CutSuffix(filepath.Base(path), ".metrics")
		if err != nil || !ok {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			situations[name] = parse(t, string(text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return situations
}

// parse reads a recording.
func parse(t *testing.T, text string) (h history) {
	t.Helper()
	for _, scraped := range strings.Split(text, "# scraped ")[1:] {
		stamp, text, _ := strings.Cut(scraped, "\n")
		at, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		found := scrape{at: time.UnixMilli(at), values: map[string]value{}}
		for _, family := range families {
			samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: model.Now()}, family)
			if err != nil {
				t.Fatal(err)
			}
			for _, sample := range samples {
				found.values[sample.Metric.String()] = value{sample.Metric, float64(sample.Value)}
			}
		}
		h = append(h, found)
	}
	return h
}
