{{/* What is refused, each in one line that names the value. What values.schema.json can say, it says before. */}}
{{- define "holdfast.check" -}}
{{- include "holdfast.checkReplicas" . -}}
{{- include "holdfast.checkTls" . -}}
{{- include "holdfast.checkSettings" . -}}
{{- end -}}

{{- define "holdfast.checkReplicas" -}}
{{- if not (has (int .Values.replicas) (list 1 3 5)) -}}
{{- fail (printf "replicas is %v: set it to 3 or 5, or to 1 for a trial (an even number survives no more lost nodes than one node less)" .Values.replicas) -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.checkTls" -}}
{{- $tls := .Values.tls -}}
{{- $sources := list $tls.existingSecret $tls.certManager.issuer.name | compact | len -}}
{{- if and (not $tls.enabled) (not .Values.insecure) -}}
{{- fail "tls.enabled is false: set insecure=true as well, if the network keeps strangers out, or turn TLS on" -}}
{{- else if and $tls.enabled (eq $sources 0) -}}
{{- fail "tls needs a certificate: set tls.existingSecret or tls.certManager.issuer.name; without TLS set tls.enabled=false and insecure=true" -}}
{{- else if and $tls.enabled (eq $sources 2) -}}
{{- fail "tls.existingSecret and tls.certManager.issuer.name are both set: leave one out" -}}
{{- else if and (not $tls.enabled) (gt $sources 0) -}}
{{- fail "tls.enabled is false, and a certificate is named: set tls.enabled=true, or leave tls.existingSecret and tls.certManager.issuer.name out" -}}
{{- end -}}
{{- end -}}

{{/* Settings that the chart decides, each with the value that decides it. */}}
{{- define "holdfast.decided" -}}
node_id: "the cluster, which gives each node its number"
join: "the chart"
listen: "listenAddress"
peer_listen: "listenAddress"
admin_listen: "listenAddress"
advertise: "clusterDomain and the pod's name"
peer_advertise: "clusterDomain and the pod's name"
data_dir: "the chart"
insecure: "the value insecure"
tls_cert: "tls"
tls_key: "tls"
tls_ca: "tls"
cluster.members: "replicas"
cluster.cluster_name: "clusterName"
{{- end -}}

{{- define "holdfast.checkSettings" -}}
{{- $settings := .Values.settings | default dict -}}
{{- range $key, $by := include "holdfast.decided" . | fromYaml -}}
{{- $table := ternary ($settings.cluster | default dict) $settings (hasPrefix "cluster." $key) -}}
{{- if hasKey $table (trimPrefix "cluster." $key) -}}
{{- fail (printf "settings.%s cannot be set: it is decided by %s" $key $by) -}}
{{- end -}}
{{- end -}}
{{- end -}}
