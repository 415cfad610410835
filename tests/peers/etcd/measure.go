package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	connections = 8
	warmUp      = 2 * time.Second
	// How long clients may take to come to an end after the window.
	patience = 5 * time.Second
)

// openSessions opens a session for each client; they share connections, which are spread over the members.
func openSessions(endpoints []string, clients, ttl int) ([]*concurrency.Session, error) {
	var shared []*clientv3.Client
	for i := range min(connections, clients) {
		connection, err := clientv3.New(clientv3.Config{
			Endpoints:   []string{endpoints[i%len(endpoints)]},
			DialTimeout: 5 * time.Second,
		})
		if err != nil {
			return nil, err
		}
		shared = append(shared, connection)
	}
	sessions, errs := make([]*concurrency.Session, clients), make([]error, clients)
	var all sync.WaitGroup
	turn := make(chan struct{}, 32)
	for i := range sessions {
		all.Add(1)
		turn <- struct{}{}
		go func() {
			defer all.Done()
			connection := shared[i%len(shared)]
			sessions[i], errs[i] = concurrency.NewSession(connection, concurrency.WithTTL(ttl))
			<-turn
		}()
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return sessions, nil
}

// A client's share of the figures. Others read it once the client has ended, or was given up.
type tally struct {
	sync.Mutex
	acquires, handOvers []int64
	grants, errors      int
}

type run struct {
	begun       time.Time
	from, until time.Duration
	shared      bool
	name        string
	// When the lock was last released, in W3.
	released atomic.Int64
}

func (r *run) now() time.Duration { return time.Since(r.begun) }

// measure lets every client acquire and release, over and over: one lock for all, or one for each.
func measure(sessions []*concurrency.Session, shared bool, secs int, pids string) map[string]any {
	r := &run{begun: time.Now(), from: warmUp, shared: shared, name: fmt.Sprintf("b/%d/k", rand.Int63())}
	r.until = r.from + time.Duration(secs)*time.Second
	ctx, cancel := context.WithTimeout(context.Background(), r.until+patience)
	defer cancel()
	tallies := make([]tally, len(sessions))
	var all sync.WaitGroup
	for i, session := range sessions {
		all.Add(1)
		go func() {
			defer all.Done()
			for r.now() < r.until {
				r.once(ctx, session, i, &tallies[i])
			}
		}()
	}
	time.Sleep(r.from - r.now())
	servers, own, packets := cpu(pids), cpu(self()), loopbackPackets()
	time.Sleep(r.until - r.now())
	row := map[string]any{
		"server_cpu_s": cpu(pids) - servers,
		"client_cpu_s": cpu(self()) - own,
	}
	packets = loopbackPackets() - packets
	all.Wait()
	sum(row, tallies, secs)
	if grants := row["ops"].(int); grants > 0 {
		row["server_cpu_s_per_kop"] = row["server_cpu_s"].(float64) / float64(grants) * 1000
		row["lo_packets_per_op"] = float64(packets) / float64(grants)
	}
	return row
}

func (r *run) once(ctx context.Context, session *concurrency.Session, client int, t *tally) {
	name := r.name
	if !r.shared {
		name += strconv.Itoa(client)
	}
	asked := r.now()
	mutex := concurrency.NewMutex(session, name)
	if err := mutex.Lock(ctx); err != nil {
		r.failed(t)
		return
	}
	granted := r.now()
	released := time.Duration(r.released.Load())
	r.released.Store(int64(r.now()))
	if err := mutex.Unlock(ctx); err != nil {
		r.failed(t)
		return
	}
	if granted < r.from || granted >= r.until {
		return
	}
	t.Lock()
	defer t.Unlock()
	t.grants++
	t.acquires = append(t.acquires, int64(granted-asked))
	if r.shared && released != 0 {
		t.handOvers = append(t.handOvers, int64(granted-released))
	}
}

func (r *run) failed(t *tally) {
	// What is cut off after the window is no error.
	if r.now() < r.until {
		t.Lock()
		t.errors++
		t.Unlock()
		time.Sleep(5 * time.Millisecond)
	}
}

func sum(row map[string]any, tallies []tally, secs int) {
	var acquires, handOvers []int64
	var grants, errors int
	var total, squares float64
	for i := range tallies {
		t := &tallies[i]
		t.Lock()
		acquires, handOvers = append(acquires, t.acquires...), append(handOvers, t.handOvers...)
		grants, errors = grants+t.grants, errors+t.errors
		total, squares = total+float64(t.grants), squares+float64(t.grants)*float64(t.grants)
		t.Unlock()
	}
	row["ops"], row["errors"], row["ops_per_s"] = grants, errors, float64(grants)/float64(secs)
	percentiles(row, "acq", acquires)
	percentiles(row, "ho", handOvers)
	if squares > 0 {
		row["jain"] = total * total / (float64(len(tallies)) * squares)
	}
}

func percentiles(row map[string]any, name string, values []int64) {
	if len(values) == 0 {
		return
	}
	slices.Sort(values)
	at := func(part float64) float64 {
		return float64(values[min(len(values)-1, int(part*float64(len(values))))]) / 1e3
	}
	row[name+"_p50_us"], row[name+"_p99_us"] = at(.5), at(.99)
}

func self() string { return strconv.Itoa(os.Getpid()) }

// cpu is the user and system time of processes, seconds.
func cpu(pids string) (seconds float64) {
	for pid := range strings.SplitSeq(pids, ",") {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue
		}
		words := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
		user, _ := strconv.ParseFloat(words[11], 64)
		system, _ := strconv.ParseFloat(words[12], 64)
		seconds += (user + system) / 100
	}
	return seconds
}

// loopbackPackets counts the packets over lo in this network namespace.
func loopbackPackets() int64 {
	text, _ := os.ReadFile("/proc/self/net/dev")
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 10 && words[0] == "lo:" {
			packets, _ := strconv.ParseInt(words[2], 10, 64)
			return packets
		}
	}
	return 0
}
