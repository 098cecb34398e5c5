// Package wire is the simulated machine on a unix socket: how the simulated
// libnvidia-ml.so.1, the simulated nvidia-smi and gpusim ctl reach it.
//
// The protocol is lines of text, made to be spoken by plain C. A line is fields
// separated by tabs and ended by a newline; inside a field a tab, newline and
// backslash are written \t, \n and \\. The client sends one line and reads one;
// on several connections it may do so several times at once. A connection lasts
// until one side closes it.
//
//	hello  1                                   first, with the version of the protocol
//	0      nvdra-sim  1                        the answer
//
//	call   SESSION  NAME  ARGUMENT…            an NVML call; the table is in sim/call.go
//	CODE   FIELD…                              NVML's return code and, when it is 0, the answer
//
//	ctl    VERB  ARGUMENT…                     a control verb; sim.Verbs documents them
//	0      LINE…                               lines to print
//	2      MESSAGE                             what was wrong with it
//
// SESSION is the first field of what the call Init answered; a client that keeps
// no session leaves it empty. Devices are UUIDs; instances are opaque handles.
// A line is at most [MaxLine] bytes. To a line it cannot read the server answers
// code 2 and a message, and closes the connection.
package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Version is the version of the protocol.
const Version = "1"

// MaxLine is how long a line may be, newline included.
const MaxLine = 256 << 10

// SocketBelow is where the socket is in a driver root, and in a container that
// got its driver from there: where nvidia-persistenced listens, because that is
// a socket container toolkits mount.
const SocketBelow = "run/nvidia-persistenced/socket"

// errLine is the kind of all errors about the form of a line.
var errLine = errors.New("malformed line")

var escaper = strings.NewReplacer("\\", `\\`, "\t", `\t`, "\n", `\n`)

// encode makes a line of fields.
func encode(fields []string) ([]byte, error) {
	escaped := make([]string, len(fields))
	for i, f := range fields {
		escaped[i] = escaper.Replace(f)
	}
	line := strings.Join(escaped, "\t") + "\n"
	if len(line) > MaxLine {
		return nil, fmt.Errorf("write line of %d bytes: %w: longer than %d", len(line), errLine, MaxLine)
	}
	return []byte(line), nil
}

// decode takes a line without its newline apart.
func decode(line string) ([]string, error) {
	fields := strings.Split(line, "\t")
	for i, f := range fields {
		u, err := unescape(f)
		if err != nil {
			return nil, err
		}
		fields[i] = u
	}
	return fields, nil
}

func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			return "", fmt.Errorf("read line: %w: it ends in a backslash", errLine)
		}
		switch s[i] {
		case '\\':
			b.WriteByte('\\')
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		default:
			return "", fmt.Errorf("read line: %w: unknown escape \\%c", errLine, s[i])
		}
	}
	return b.String(), nil
}

// readLine reads one line and takes it apart. At the end of the stream the error
// is io.EOF.
func readLine(r *bufio.Reader) ([]string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > MaxLine {
			return nil, fmt.Errorf("read line: %w: longer than %d bytes", errLine, MaxLine)
		}
		switch {
		case err == nil:
			return decode(string(line[:len(line)-1]))
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
