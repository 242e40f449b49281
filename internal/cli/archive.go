package cli

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// archivedJob is a line of an archive, which a server with LUCIUS_ARCHIVE_DIR writes.
type archivedJob struct {
	api.Job

	Payload json.RawMessage `json:"payload,omitempty"`
	Events  []api.Event     `json:"events"`
}

// archive returns lucius archive.
func (t *tool) archive() *cobra.Command {
	cmd := &cobra.Command{
		Use: "archive", GroupID: GroupOperate, Short: "Read the jobs that retention archived",
		Example: "  lucius archive read /var/lib/lucius-archive --tenant tenant_a",
	}
	cmd.AddCommand(t.archiveRead())
	return cmd
}

func (t *tool) archiveRead() *cobra.Command {
	var filter archiveFilter
	var since string
	cmd := &cobra.Command{
		Use: "read FILE|DIR", Short: "List the jobs of an archive, and check its lines", Args: Takes(1, 1),
		Long: "Lists the jobs that retention wrote to the files jobs-*.jsonl in LUCIUS_ARCHIVE_DIR before it purged them,\n" +
			"each once, and checks every line. A line that is truncated or is not a job is reported and left out, and\n" +
			"the exit code is 1. With -o json the lines are printed with payload and history, as they are but for\n" +
			"control characters, which are escaped.",
		Example: "  lucius archive read /var/lib/lucius-archive --tenant tenant_a --since 90d\n" +
			"  lucius archive read jobs-2026-01.jsonl --job JOB -o json",
	}
	flags := cmd.Flags()
	flags.StringVar(&filter.tenant, "tenant", "", "only jobs of this tenant")
	flags.StringVar(&filter.job, "job", "", "only this job")
	flags.StringVar(&since, "since", "", "only jobs that ended since then: "+momentHelp)
	flags.StringVarP((*string)(&t.output), "output", "o", "table", "table or json")
	completeWords(cmd, "output", "table", "json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s := &session{tool: t, cmd: cmd}
		if t.output != "table" && t.output != "json" {
			return usagef("--output is %q, it must be table or json", t.output)
		}
		at, err := s.moment("since", since)
		if err != nil {
			return err
		}
		if at != nil {
			filter.since = *at
		}
		files, err := archiveFiles(args[0])
		if err != nil {
			return err
		}
		reader := &archiveReader{session: s, filter: filter, seen: map[[16]byte]bool{}}
		for _, file := range files {
			if err := reader.file(file); err != nil {
				return fmt.Errorf("read the archive: %w", err)
			}
		}
		return reader.end()
	}
	return cmd
}

// archiveFiles returns the files of an archive.
func archiveFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, &Error{Code: ExitNotFound, Err: fmt.Errorf("read the archive: %w", err)}
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	files, err := filepath.Glob(filepath.Join(path, "jobs-*.jsonl"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s holds no file jobs-*.jsonl", path)
	}
	if err != nil {
		return nil, &Error{Code: ExitNotFound, Err: err}
	}
	slices.Sort(files) // by month
	return files, nil
}

// archiveFilter selects jobs.
type archiveFilter struct {
	tenant, job string
	since       api.Time
}

func (f *archiveFilter) wants(job *api.Job) bool {
	return (f.tenant == "" || job.TenantID == f.tenant) && (f.job == "" || job.JobID == f.job) &&
		!job.CompletedAt.Before(f.since.Time)
}

// archiveReader reads the files of an archive.
type archiveReader struct {
	*session

	filter archiveFilter
	seen   map[[16]byte]bool // hashes of ids of jobs: a repeated purge archives a job again
	found  []api.Job         // for the next rows of the table
	headed bool              // The table has its head.
	bad    int               // how many lines are damaged
}

// archivePage is how many rows the table gets at once: an archive may have more jobs than fit into memory.
const archivePage = 1_000

func (r *archiveReader) file(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // Closing a file that was only read loses nothing.
	lines := bufio.NewReaderSize(file, 1<<16)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(line) == 0 {
			return nil
		}
		var job archivedJob
		fault := errors.New("it is truncated")
		if err == nil {
			fault = json.Unmarshal(line, &job)
			if wrong, ok := errors.AsType[*json.UnmarshalTypeError](fault); ok {
				fault = fmt.Errorf("it has %s where a job has another type", wrong.Value)
			}
		}
		if fault == nil {
			fault = job.check()
		}
		if fault != nil {
			r.bad++
			fmt.Fprintf(r.Stderr, "%s: line %d is left out: %s\n", name, number, plain(fault.Error()))
		} else if err := r.take(&job, line); err != nil {
			return err
		}
	}
}

// take prints a job, or keeps it for the table, if the filter selects it.
func (r *archiveReader) take(job *archivedJob, line []byte) error {
	sum := sha256.Sum256([]byte(job.JobID))
	id := [16]byte(sum[:16])
	if r.seen[id] || !r.filter.wants(&job.Job) {
		return nil
	}
	r.seen[id] = true
	if r.output == "json" {
		if _, err := (SafeJSON{r.Stdout}).Write(line); err != nil {
			return fmt.Errorf("print the job: %w", err)
		}
		return nil
	}
	if r.found = append(r.found, job.Job); len(r.found) == archivePage {
		return r.list()
	}
	return nil
}

// list writes the jobs that were found as rows of the table.
func (r *archiveReader) list() error {
	err := r.write(render(r.session, r.found, func(p *page, jobs []api.Job) {
		header := []string{"JOB", "STATE", "TENANT", "REQUEST", "ACCEPTED", "ENDED", "ABOUT"}
		if r.headed {
			header = nil
		}
		rows := make([][]string, len(jobs))
		for i := range jobs {
			job := &jobs[i]
			rows[i] = []string{
				job.JobID, p.state(string(job.State)), job.TenantID, job.RequestType, p.ago(job.CreatedAt.Time),
				p.ago(job.CompletedAt.Time), job.ErrorCode,
			}
		}
		p.table(header, rows)
	}))
	r.found, r.headed = r.found[:0], true
	return err
}

// check returns an error unless the line is a complete record of a job that has ended.
func (j *archivedJob) check() error {
	ended := j.State == api.JobStateSucceeded || j.State == api.JobStateFailedFinal || j.State == api.JobStateCancelled
	if j.JobID == "" || j.TenantID == "" || !ended || j.CompletedAt.IsZero() || len(j.Events) == 0 {
		return errors.New("it is not of an ended job")
	}
	rev := int64(0)
	for i := range j.Events {
		if next := j.Events[i].Rev; next != rev && next != rev+1 {
			return fmt.Errorf("the history of job %s jumps from rev %d to %d", j.JobID, rev, next)
		}
		rev = j.Events[i].Rev
	}
	if rev != j.Rev {
		return fmt.Errorf("the history of job %s ends with rev %d, and the job has rev %d", j.JobID, rev, j.Rev)
	}
	return nil
}

// end prints the rest of the table, and returns an error if lines are damaged.
func (r *archiveReader) end() error {
	if r.output != "json" && (len(r.found) > 0 || !r.headed) {
		if err := r.list(); err != nil {
			return err
		}
	}
	if r.bad > 0 {
		return &Error{Code: ExitFailed, Err: fmt.Errorf("%d lines of the archive are damaged and left out: see above", r.bad)}
	}
	return nil
}
