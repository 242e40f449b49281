package aztablestore

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// maxMessage is how many bytes of a service's message are kept.
const maxMessage = 200

// errReply is wrapped by the errors for an answer that does not tell a
// transaction's outcome.
var errReply = errors.New("malformed answer to a transaction")

// transaction collects the outcome of one batch, which a context carries to
// [batchReplies].
type transaction struct {
	ops   int
	etags []tablestore.ETag // Set if the transaction was committed; "" for a deletion.
}

// transactionKey is the key under which a context holds the transaction.
type transactionKey struct{}

// batchReplies reads the answers to transactions before the SDK does. The outer
// status is always 202; the outcome is in the parts inside. The SDK returns
// neither the failed row nor the ETags, treats a truncated answer as success,
// and panics on an empty one.
type batchReplies struct{}

// Do implements policy.Policy. The error is a *requestError for a transaction
// that the service refused, and wraps errReply if the answer does not tell the
// outcome.
func (batchReplies) Do(req *policy.Request) (*http.Response, error) {
	reply, err := req.Next()
	if err != nil {
		return reply, err
	}
	tx, ok := req.Raw().Context().Value(transactionKey{}).(*transaction)
	if !ok || reply.StatusCode >= 300 {
		return reply, nil
	}
	body, err := runtime.Payload(reply)
	if err != nil {
		return reply, err
	}
	return reply, tx.read(reply.Header.Get("Content-Type"), body)
}

// read parses the outcome: multipart in multipart, the inner parts HTTP
// responses. A refusal is a single part, whose message names the op's index in
// the transaction.
func (tx *transaction) read(contentType string, body []byte) error {
	var parts []part
	err := eachPart(contentType, bytes.NewReader(body), func(header string, outer io.Reader) error {
		return eachPart(header, outer, func(_ string, inner io.Reader) error {
			one, err := readPart(inner)
			parts = append(parts, one)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errReply, err)
	}
	var etags []tablestore.ETag
	for _, part := range parts {
		if part.status >= 300 {
			f := answered(part.status, part.header, part.body)
			f.inner = true
			if tx.ops == 1 {
				f.op = 0
			} else if f.op >= tx.ops {
				f.op = -1
			}
			return f
		}
		etags = append(etags, tablestore.ETag(part.header.Get("ETag")))
	}
	if len(etags) != tx.ops {
		return fmt.Errorf("%w: %d outcomes of %d ops", errReply, len(etags), tx.ops)
	}
	tx.etags = etags
	return nil
}

// eachPart calls read for each part of a multipart body. It returns an error for
// a truncated one.
func eachPart(contentType string, body io.Reader, read func(contentType string, part io.Reader) error) error {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/mixed" || params["boundary"] == "" {
		return fmt.Errorf("the type %q is not multipart", contentType)
	}
	reader := multipart.NewReader(body, params["boundary"])
	for {
		part, err := reader.NextRawPart()
		if err == io.EOF { // A wrapped EOF means that the end is missing.
			return nil
		}
		if err != nil {
			return err
		}
		if err := read(part.Header.Get("Content-Type"), part); err != nil {
			return err
		}
	}
}

// part is the answer to one op of a transaction.
type part struct {
	status int
	header http.Header
	body   []byte
}

func readPart(inner io.Reader) (part, error) {
	text, err := io.ReadAll(inner)
	if err != nil {
		return part{}, err
	}
	reply, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
	if err != nil {
		return part{}, err
	}
	defer func() { _ = reply.Body.Close() }()
	body, err := io.ReadAll(reply.Body)
	return part{status: reply.StatusCode, header: reply.Header, body: body}, err
}

// complaint returns the code and message in the body of a refusal, and the
// index of the op that failed, counted from 0: in a transaction the message
// begins with it. If it does not, op is -1.
func complaint(body []byte) (code, message string, op int) {
	var answer struct {
		Error struct {
			Code    string `json:"code"`
			Message struct {
				Value string `json:"value"`
			} `json:"message"`
		} `json:"odata.error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", "", -1
	}
	message, _, _ = strings.Cut(answer.Error.Message.Value, "\n")
	op = -1
	if place, rest, found := strings.Cut(message, ":"); found {
		if n, err := strconv.ParseUint(place, 10, 16); err == nil {
			op, message = int(n), rest
		}
	}
	return answer.Error.Code, strings.ToValidUTF8(message[:min(len(message), maxMessage)], ""), op
}
